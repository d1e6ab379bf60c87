from typing import Any


async def test_hello(rig: Any) -> None:
    (engine,) = await rig.serve()
    reply = await rig.ask()
    print(reply, engine.asked)
    assert reply.status == 200
    reply = await rig.ask(method="GET", path="/v1/models")
    print(reply)
