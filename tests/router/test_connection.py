"""One client's connection, over raw sockets: requests in order, limits that can be read, and nothing mixed up."""

import hashlib
import json

import pytest
import trio
from rig import Asked, Rig, answers_ok
from trio.testing import MockClock

from llmgw.core.routing import ClientKey, RoutedModel, Unavailable
from llmgw.router.records import Ending


async def test_a_connection_is_kept_and_requests_are_answered_in_order(rig: Rig, autojump_clock: MockClock) -> None:
    """Pipelined ones too: E10 (i)."""

    async def echoes(asked: Asked) -> None:
        await trio.sleep(asked.json["wait"])
        await asked.answer(json.dumps({"number": asked.json["number"]}).encode())

    await rig.serve(echoes)
    async with await rig.connect() as wire:
        bodies = [{"model": "tiny", "number": number, "wait": 3 - number} for number in range(3)]
        await wire.send(b"".join(rig.request(body) for body in bodies))
        assert [(await rig.read(wire)).json["number"] for _ in bodies] == [0, 1, 2]


async def test_models_are_listed_and_fetched_with_slashes_quoted_or_not(rig: Rig, autojump_clock: MockClock) -> None:
    """E15: list, list with a slash, an id with a slash, and the same quoted."""
    rig.publish(models=(RoutedModel("Qwen/Qwen2.5-7B", created=5), RoutedModel("tiny")))
    for path in ("/v1/models", "/v1/models/"):
        listed = await rig.ask(method="GET", path=path)
        assert [entry["id"] for entry in listed.json["data"]] == ["Qwen/Qwen2.5-7B", "tiny"]
    for path in ("/v1/models/Qwen/Qwen2.5-7B", "/v1/models/Qwen%2FQwen2.5-7B"):
        found = await rig.ask(method="GET", path=path)
        assert (found.status, found.json["id"], found.json["created"]) == (200, "Qwen/Qwen2.5-7B", 5)
    for path in ("/v1/models/qwen/qwen2.5-7b", "/v1/models/none"):
        missing = await rig.ask(method="GET", path=path)
        assert (missing.status, missing.error["code"]) == (404, "model_not_found")
    doubled = await rig.ask(method="GET", path="/v1/v1/models")
    assert doubled.status == 404
    assert "/v1/" in doubled.error["message"]


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        ("none", 404, "model_not_found"),
        ("TINY", 404, "model_not_found"),
        (" tiny ", 404, "model_not_found"),
        (None, 400, None),
        (7, 400, None),
    ],
)
async def test_e15_a_model_that_is_none_reaches_no_engine(
    rig: Rig, model: object, status: int, code: str | None, autojump_clock: MockClock
) -> None:
    (engine,) = await rig.serve()
    reply = await rig.ask({"model": model})
    assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, "model")
    assert not engine.asked
    missing = await rig.ask({"messages": []})
    assert (missing.status, missing.error["param"]) == (400, "model")


@pytest.mark.parametrize("reason", ["loading: tiny/0 is loading on n1", "failed: exit code 1", "pending: no node fits"])
async def test_a_known_model_that_is_not_ready_is_a_503_with_the_reason(
    rig: Rig, reason: str, autojump_clock: MockClock
) -> None:
    rig.publish(models=(RoutedModel("tiny", unavailable=Unavailable(reason, 12.5)),))
    reply = await rig.ask()
    assert (reply.status, reply.error["code"]) == (503, "server_is_overloaded")
    assert reply.header("retry-after") == "13"
    assert reason in reply.error["message"]
    assert [entry["id"] for entry in (await rig.ask(method="GET", path="/v1/models")).json["data"]] == ["tiny"]


async def test_keys_are_asked_for_and_bound_to_models(rig: Rig, autojump_clock: MockClock) -> None:
    """401 without a right key, 404 outside its models, whichever header it comes in; no key is needed for /health."""
    digest = hashlib.sha256(b"sesame").hexdigest()
    (engine,) = await rig.serve(
        models=(RoutedModel("tiny"), RoutedModel("other")), keys=(ClientKey("team", digest, ("tiny",)),)
    )
    for header in ("Authorization: Bearer sesame", "x-api-key: sesame"):
        assert (await rig.ask(None, header)).status == 200
    for headers in ((), ("Authorization: Bearer wrong",), ("Authorization: Basic sesame",)):
        refused = await rig.ask(None, *headers)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
        assert "wrong" not in refused.body.decode()
    outside = await rig.ask({"model": "other"}, "Authorization: Bearer sesame")
    assert (outside.status, outside.error["code"]) == (404, "model_not_found")
    assert len(engine.asked) == 2
    assert (await rig.ask(method="GET", path="/health")).status == 200
    assert rig.records.all[0].client == "team"


async def test_e10_a_continue_is_said_at_once_and_never_forwarded(rig: Rig, autojump_clock: MockClock) -> None:
    (engine,) = await rig.serve()
    body = json.dumps({"model": "tiny", "pad": "x" * 2_000_000}).encode()
    head, _, _ = rig.request(body, "Expect: 100-continue").partition(b"\r\n\r\n")
    async with await rig.connect() as wire:
        began = trio.current_time()
        await wire.send(head + b"\r\n\r\n")
        assert (await wire.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        assert trio.current_time() - began <= 0.1
        await wire.send(body)
        assert (await rig.read(wire)).status == 200
    assert engine.asked[0].body == body
    assert engine.asked[0].header("expect") is None


async def test_e10_b_a_bad_key_is_told_without_asking_for_the_body(rig: Rig, autojump_clock: MockClock) -> None:
    await rig.serve(keys=(ClientKey("team", "0" * 64),))
    async with await rig.connect() as wire:
        await wire.send(
            b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        )
        assert (await rig.read(wire)).status == 401


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"Expect: something-else\r\nContent-Length: 2\r\n", 417),
        (b"no colon here\r\n", 400),
        (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", 400),
        (b"Transfer-Encoding: identity, chunked\r\n", 400),
        (b"Host: second\r\n", 400),
        (b"x-big: " + b"x" * 200_000 + b"\r\n", 431),
    ],
)
async def test_what_is_no_request_is_refused_and_ends_the_connection(
    rig: Rig, lines: bytes, status: int, autojump_clock: MockClock
) -> None:
    (engine,) = await rig.serve()
    async with await rig.connect() as wire:
        await wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\n" + lines + b"\r\n{}")
        reply = await rig.read(wire)
        assert reply.status == status
        assert set(reply.error)
        assert await wire.rest() == b""
    assert not engine.asked
    assert rig.records.last.ending is Ending.REFUSED


async def test_twenty_kib_of_headers_are_fine(rig: Rig, autojump_clock: MockClock) -> None:
    await rig.serve()
    assert (await rig.ask(None, *(f"x-{number}: {'y' * 1000}" for number in range(20)))).status == 200


async def test_e11_a_body_above_the_limit_is_a_413_that_can_be_read(make_rig: object, autojump_clock: object) -> None:
    """With a length it is told at once; in chunks as soon as the count is exceeded; below it passes."""
    async with make_rig(body_max=100_000) as rig:  # type: ignore[operator]
        (engine,) = await rig.serve()
        assert (await rig.ask({"model": "tiny", "x": "y" * 90_000})).status == 200
        large = await rig.ask({"model": "tiny", "x": "y" * 100_000})
        assert (large.status, large.error["code"]) == (413, "request_too_large")
        assert "100000" in large.error["message"]
        async with await rig.connect() as wire:
            await wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(11):
                await wire.send(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
            assert (await rig.read(wire)).status == 413
        assert len(engine.asked) == 1


async def test_a_chunked_request_arrives_with_a_length(rig: Rig, autojump_clock: MockClock) -> None:
    (engine,) = await rig.serve()
    async with await rig.connect() as wire:
        await wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"mod', b'el": "tiny"}'):
            await wire.send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await wire.send(b"0\r\n\r\n")
        assert (await rig.read(wire)).status == 200
    assert engine.asked[0].body == b'{"model": "tiny"}'


async def test_a_body_that_stalls_is_a_408_and_holds_no_engine(rig: Rig, autojump_clock: MockClock) -> None:
    (engine,) = await rig.serve()
    async with await rig.connect() as wire:
        began = trio.current_time()
        await wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 1000\r\n\r\n{")
        reply = await rig.read(wire)
        assert reply.status == 408
        assert 60 <= trio.current_time() - began <= 62
    assert engine.connections == 0


async def test_unknown_paths_and_methods_say_what_there_is(rig: Rig, autojump_clock: MockClock) -> None:
    await rig.serve()
    unknown = await rig.ask(path="/v1/nothing")
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_url")
    wrong = await rig.ask(method="GET", path="/v1/chat/completions")
    assert wrong.status == 405
    assert wrong.header("allow") == "POST"


async def test_ready_follows_the_table(rig: Rig, autojump_clock: MockClock) -> None:
    assert (await rig.ask(method="GET", path="/ready")).status == 503
    rig.publish()
    assert (await rig.ask(method="GET", path="/ready")).status == 200


async def test_an_idle_connection_ends_when_the_router_drains_and_a_busy_one_after_its_answer(
    rig: Rig, autojump_clock: MockClock
) -> None:
    async def slow(asked: Asked) -> None:
        await trio.sleep(1 if b"slow" in asked.body else 0)
        await answers_ok(asked)

    await rig.serve(slow)
    async with await rig.connect() as idle, await rig.connect() as busy:
        await idle.send(rig.request())
        await rig.read(idle)
        await busy.send(rig.request({"model": "tiny", "slow": 1}))
        await trio.sleep(0.5)
        rig.stop.set()
        assert await idle.rest() == b""
        reply = await rig.read(busy)
        assert (reply.status, reply.header("connection")) == (200, "close")
        assert await busy.rest() == b""
    await rig.ended.wait()
