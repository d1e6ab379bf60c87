"""A request at an engine: passed on byte for byte, ended once, and never tried twice after a byte."""

import hashlib
import json
import random
import socket
from typing import Any

import attrs
import pytest
import trio
from rig import Asked, Rig
from trio.testing import MockClock

from llmgw.core.routing import ClientKey, Endpoint
from llmgw.router.records import Ending

ANSWER = b'{"id":"x","usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}'


async def test_a_small_answer_is_passed_on_whole(rig: Rig, autojump_clock: MockClock) -> None:
    (engine,) = await rig.serve()
    reply = await rig.ask(None, "x-request-id: mine")
    assert (reply.status, reply.body) == (200, ANSWER)
    assert reply.header("x-request-id") == "mine"
    assert engine.asked[0].header("x-request-id") == "mine"
    assert engine.asked[0].header("host") == f"127.0.0.1:{engine.port}"
    record = rig.records.last
    assert (record.ending, record.prompt_tokens, record.completion_tokens) == (Ending.DONE, 3, 5)
    assert (record.model, record.endpoint, record.epoch, record.status) == ("tiny", "tiny/0", 1, 200)


async def test_the_body_is_the_clients_but_for_the_models_name(rig: Rig, autojump_clock: MockClock) -> None:
    """Unknown fields, key order, number spelling, duplicate keys and escapes reach the engine as they were."""
    engine = await rig.engine()
    rig.publish(rig.endpoint(0, engine, upstream_model="on-disk"))
    body = b'{ "a":1.50, "big":123456789012345678901234567890, "model" : "gpt","a":null, "s":"\\u00e9\\/" }'
    assert (await rig.ask(body)).status == 200
    assert engine.asked[0].body == body.replace(b'"gpt"', b'"on-disk"')


async def test_e17_keys_reach_only_whom_they_are_for(rig: Rig, autojump_clock: MockClock) -> None:
    """No engine sees a client's credential; the keyed engine always sees its own; hop-by-hop headers go."""
    engine = await rig.engine()
    rig.publish(rig.endpoint(0, engine, key="engine-secret"))
    await rig.ask(
        None,
        "Authorization: Bearer client-secret-key",
        "x-api-key: client-secret-key",
        "api-key: client-secret-key",
        "cookie: session=client-secret-key",
        "proxy-authorization: Basic eDp5",
        "Connection: x-secret",
        "x-secret: yes",
        "x-harmless: yes",
    )
    headers = dict(engine.asked[0].headers)
    assert headers["authorization"] == "Bearer engine-secret"
    assert headers["x-harmless"] == "yes"
    assert "client-secret-key" not in json.dumps(engine.asked[0].headers)
    for gone in ("x-api-key", "api-key", "cookie", "proxy-authorization", "x-secret", "connection"):
        assert gone not in headers


@pytest.mark.parametrize("cut", range(1, 12))
async def test_e03_a_stream_passes_unchanged_however_it_is_cut(rig: Rig, cut: int, autojump_clock: MockClock) -> None:
    """Split characters, CRLF cut in two, invalid UTF-8 and a huge line: what was sent is what arrives."""
    content = "data: 你好 🚀\r\n\r\ndata: ".encode() + b"\xff\xfe" + b"x" * 3000 + b"\n\ndata: [DONE]\n\n"

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        for start in range(0, 60, cut):
            await asked.chunk(content[start : min(start + cut, 60)])
        await asked.chunk(content[60:])
        await asked.end_stream()

    await rig.serve(stream)
    reply = await rig.ask({"model": "tiny", "stream": True})
    assert reply.complete
    assert reply.body == content


async def test_each_event_arrives_before_the_next_is_sent(rig: Rig, autojump_clock: MockClock) -> None:
    """Nothing is held back: the engine waits for the client to have what was said before it says more."""
    seen: list[trio.Event] = [trio.Event() for _ in range(5)]

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        for number, event in enumerate(seen):
            await asked.event(str(number))
            await event.wait()
        await asked.end_stream()

    await rig.serve(stream)
    async with await rig.connect() as wire:
        await wire.send(rig.request({"model": "tiny", "stream": True}))
        await wire.until(b"\r\n\r\n")
        for number, event in enumerate(seen):
            await wire.until(f"data: {number}\n\n".encode())
            assert rig.table.in_flight() == 1
            event.set()
        await wire.until(b"0\r\n\r\n")
    await rig.settled()
    assert rig.records.last.exact is False
    assert rig.records.last.completion_tokens == 5


@pytest.mark.parametrize("how", ["reset", "end within the body", "end within an event"])
async def test_e06_an_engine_that_dies_in_mid_stream(rig: Rig, how: str, autojump_clock: MockClock) -> None:
    """One error event on a line of its own, no [DONE], the end within a second, no second attempt."""

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        for number in range(3):
            await asked.event(str(number))
        if how == "end within an event":
            await asked.wire.send(b"40\r\ndata: {")
            await trio.sleep(0.05)
        if how == "reset":
            await trio.sleep(0.05)
            asked.wire.reset()
        else:
            asked.wire.close()

    engines = await rig.serve(stream, stream)
    began = trio.current_time()
    reply = await rig.ask({"model": "tiny", "stream": True})
    assert trio.current_time() - began < 1
    assert not reply.complete
    assert sum(len(engine.asked) for engine in engines) == 1
    assert b"[DONE]" not in reply.body
    lines = reply.body.split(b"\n")
    errors = [line for line in lines if line.startswith(b'data: {"error"')]
    assert len(errors) == 1
    assert set(json.loads(errors[0][6:])["error"]) == {"message", "type", "param", "code"}
    assert lines[lines.index(errors[0]) - 1] == b""
    assert rig.records.last.ending is Ending.ENGINE_DIED
    assert any("died" in name for name in rig.gateway.counters.samples())


async def test_e06_d_silence_ends_at_the_idle_limit(make_rig: Any, autojump_clock: Any) -> None:
    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        await trio.sleep_forever()

    async with make_rig(idle_timeout=20.0) as rig:
        await rig.serve(stream)
        began = trio.current_time()
        reply = await rig.ask({"model": "tiny", "stream": True})
        assert 20 <= trio.current_time() - began < 22
        assert b"error" in reply.body
        assert rig.records.last.ending is Ending.DEADLINE


async def test_e06_e_a_whole_body_without_done_is_passed_as_it_is(rig: Rig, autojump_clock: MockClock) -> None:
    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        await asked.end_stream()

    await rig.serve(stream)
    reply = await rig.ask({"model": "tiny", "stream": True})
    assert reply.complete
    assert reply.body == b"data: 1\n\n"


@pytest.mark.parametrize(
    ("status", "kind", "body", "header"),
    [
        ("400 Bad Request", "application/json", b'{"error":{"message":"m","type":"t","param":null,"code":null}}', ""),
        ("429 Too Many Requests", "application/json", b'{"error":{}}', "Retry-After: 7"),
        ("503 Service Unavailable", "application/json", b'{"error":"Loading model"}', "Retry-After: 2"),
        ("500 Internal Server Error", "text/plain", b"oops", ""),
        ("200 OK", "application/json", ANSWER, ""),
    ],
)
async def test_e05_an_engines_answer_is_its_own(  # noqa: PLR0917
    rig: Rig, status: str, kind: str, body: bytes, header: str, autojump_clock: MockClock
) -> None:
    """(a)-(e): same status, body, content type and Retry-After, for a request that asked for a stream."""

    async def script(asked: Asked) -> None:
        await asked.answer(body, status, *([header] if header else []), kind=kind)

    await rig.serve(script)
    reply = await rig.ask({"model": "tiny", "stream": True})
    assert (reply.status, reply.body, reply.header("content-type")) == (int(status[:3]), body, kind)
    assert reply.header("retry-after") == (header.removeprefix("Retry-After: ") or None)


async def test_e05_f_an_error_event_first_is_passed_unchanged(rig: Rig, autojump_clock: MockClock) -> None:
    async def script(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event('{"error":{"message":"no"}}')
        await asked.end_stream()

    await rig.serve(script)
    reply = await rig.ask({"model": "tiny", "stream": True})
    assert (reply.status, reply.body) == (200, b'data: {"error":{"message":"no"}}\n\n')


async def test_e05_g_an_empty_200_is_a_502(rig: Rig, autojump_clock: MockClock) -> None:
    async def script(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.end_stream()

    await rig.serve(script)
    reply = await rig.ask({"model": "tiny", "stream": True})
    assert reply.status == 502
    assert reply.error["code"] == "bad_gateway"


async def test_what_cannot_be_reached_is_tried_elsewhere_at_once(rig: Rig, autojump_clock: MockClock) -> None:
    """A refused connection sent nothing: the client gets the other engine's answer, and never learns of it."""
    dead, alive = await rig.engine(), await rig.engine()
    await dead.stop_listening()
    rig.publish(rig.endpoint(0, dead), rig.endpoint(1, alive))
    for _ in range(20):
        assert (await rig.ask()).status == 200
    assert len(alive.asked) == 20
    reports = {report.id: report.state for report in rig.table.reports(trio.current_time())}
    assert reports["tiny/0"] == "unreachable"


async def test_when_none_can_be_reached_it_is_a_503_that_says_so(rig: Rig, autojump_clock: MockClock) -> None:
    dead = await rig.engine()
    await dead.stop_listening()
    rig.publish(rig.endpoint(0, dead))
    reply = await rig.ask()
    assert reply.status == 503
    assert reply.error["code"] == "server_is_overloaded"
    assert "tiny/0" in reply.error["message"]
    assert int(reply.header("retry-after") or 0) >= 1


async def test_a_pooled_connection_that_the_engine_has_closed_is_replaced_once(
    rig: Rig, autojump_clock: MockClock
) -> None:
    async def answers_once(asked: Asked) -> None:
        if len(engine.asked) == 2:
            asked.wire.close()  # the request crossed with the close
            return
        await asked.answer(ANSWER)

    (engine,) = await rig.serve(answers_once)
    assert (await rig.ask()).status == 200
    assert (await rig.ask()).status == 200
    assert (len(engine.asked), engine.connections) == (3, 2)


async def test_a_fresh_connection_that_dies_without_an_answer_is_a_502(rig: Rig, autojump_clock: MockClock) -> None:
    async def closes(asked: Asked) -> None:
        asked.wire.close()

    engines = await rig.serve(closes, closes)
    reply = await rig.ask()
    assert reply.status == 502
    assert sum(len(engine.asked) for engine in engines) == 1
    assert rig.records.last.ending is Ending.ENGINE_DIED


async def test_a_client_that_leaves_before_the_first_byte_frees_its_engine_within_100_ms(
    rig: Rig, autojump_clock: MockClock
) -> None:
    told: list[float] = []

    async def never(asked: Asked) -> None:
        told.append(await asked.wire.wait_closed())

    await rig.serve(never)
    wire = await rig.connect()
    await wire.send(rig.request())
    await trio.sleep(5)
    left = trio.current_time()
    wire.close()
    await rig.settled()
    await trio.sleep(1)
    assert told[0] - left <= 0.1
    assert rig.records.last.ending is Ending.CLIENT_LEFT


async def test_a_client_that_leaves_in_mid_stream_frees_its_engine_within_100_ms(
    rig: Rig, autojump_clock: MockClock
) -> None:
    told: list[float] = []

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        told.append(await asked.wire.wait_closed())

    await rig.serve(stream)
    wire = await rig.connect()
    await wire.send(rig.request({"model": "tiny", "stream": True}))
    await wire.until(b"data: 1\n\n")
    await trio.sleep(5)
    left = trio.current_time()
    wire.close()
    await rig.settled()
    await trio.sleep(1)
    assert told[0] - left <= 0.1
    assert rig.records.last.ending is Ending.CLIENT_LEFT


async def test_the_first_byte_has_a_limit(make_rig: Any, autojump_clock: Any) -> None:
    async def never(_asked: Asked) -> None:
        await trio.sleep_forever()

    async with make_rig(first_byte_timeout=30.0) as rig:
        await rig.serve(never)
        began = trio.current_time()
        reply = await rig.ask()
        assert 30 <= trio.current_time() - began < 32
        assert reply.status == 504
        assert rig.records.last.ending is Ending.DEADLINE


async def test_an_http_1_0_client_gets_events_at_once_and_no_chunks(rig: Rig, autojump_clock: MockClock) -> None:
    """E10 (d): the body is ended by the close of the connection."""

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        await trio.sleep(1)
        await asked.event("2")
        await asked.end_stream()

    await rig.serve(stream)
    async with await rig.connect() as wire:
        await wire.send(rig.request({"model": "tiny", "stream": True}, version="1.0"))
        head = await wire.until(b"\r\n\r\n")
        assert b"chunked" not in head.lower()
        assert await wire.until(b"\n\n") == b"data: 1\n\n"
        assert await wire.rest() == b"data: 2\n\n"


async def test_a_slow_reader_holds_up_its_engine_and_nobody_else(rig: Rig, autojump_clock: MockClock) -> None:
    """E12 in small: reading from the engine pauses, another client is served meanwhile."""
    sent = 0

    async def floods(asked: Asked) -> None:
        nonlocal sent
        if b"quick" in asked.body:
            await asked.answer(ANSWER)
            return
        await asked.begin_stream()
        for _ in range(400):
            await asked.chunk(b"x" * 100_000)
            sent += 100_000

    await rig.serve(floods)
    wire = await rig.connect()
    await wire.send(rig.request({"model": "tiny", "stream": True}))
    await wire.until(b"\r\n\r\n")
    await trio.sleep(5)
    stopped_at = sent
    await trio.sleep(5)
    assert sent == stopped_at < 40_000_000
    assert (await rig.ask({"model": "tiny", "quick": 1})).status == 200
    wire.close()


async def test_e02_counters_do_not_drift(rig: Rig, autojump_clock: MockClock) -> None:
    """Successes, early and late aborts, 500s and resets: at idle every counter is 0; removal keeps live requests."""
    rng = random.Random(2)

    async def mixed(asked: Asked) -> None:
        kind = asked.json["kind"]
        if kind == "reset":
            asked.wire.reset()
        elif kind == "500":
            await asked.answer(b"{}", "500 Internal Server Error")
        elif kind in {"hold", "early"}:
            await trio.sleep(3)
            await asked.answer(ANSWER)
        else:
            await asked.begin_stream()
            for number in range(3):
                await asked.event(str(number))
                await trio.sleep(0.02)
            await asked.end_stream()

    async def one(kind: str) -> None:
        wire = await rig.connect()
        await wire.send(rig.request({"model": "tiny", "stream": True, "kind": kind}))
        if kind == "early":
            await trio.sleep(0.03)
        elif kind == "late":
            await wire.until(b"data: 0")
        else:
            await rig.read(wire)
        assert all(load.in_flight >= 0 for load in rig.table._loads.values())
        wire.close()

    engines = await rig.serve(mixed, mixed, mixed)
    kinds = ["ok"] * 4 + ["early"] * 2 + ["late"] * 2 + ["500"] + ["reset"]
    for _ in range(4):
        async with trio.open_nursery() as nursery:
            for _ in range(25):
                nursery.start_soon(one, rng.choice(kinds))
    await rig.settled()
    assert rig.table.in_flight() == 0

    async with trio.open_nursery() as nursery:
        rig.publish(rig.endpoint(2, engines[2]))
        for _ in range(5):
            nursery.start_soon(one, "hold")
        await trio.sleep(0.5)
        rig.publish(rig.endpoint(0, engines[0]))
        assert rig.table.in_flight() == 5
        rig.publish(*(rig.endpoint(number, engine) for number, engine in enumerate(engines)))
        assert [report.in_flight for report in rig.table.reports(trio.current_time()) if report.id == "tiny/2"] == [5]
    before = [len(engine.asked) for engine in engines]
    for _ in range(150):
        await one("ok")
    shares = [len(engine.asked) - old for engine, old in zip(engines, before, strict=True)]
    assert all(150 * 0.20 <= share <= 150 * 0.47 for share in shares), shares


async def test_a_request_in_flight_survives_the_removal_of_its_endpoint(rig: Rig, autojump_clock: MockClock) -> None:
    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        await trio.sleep(10)
        await asked.event("2")
        await asked.end_stream()

    await rig.serve(stream)
    async with trio.open_nursery() as nursery:

        async def client() -> None:
            reply = await rig.ask({"model": "tiny", "stream": True})
            assert reply.body == b"data: 1\n\ndata: 2\n\n"

        nursery.start_soon(client)
        await trio.sleep(1)
        rig.publish()
        assert (await rig.ask()).status == 503


async def test_an_ipv6_endpoint_has_brackets_in_its_host(rig: Rig, autojump_clock: MockClock) -> None:
    """The Host header can be pasted into a URL."""
    rig.publish(Endpoint("tiny/0", "tiny", "http://[::1]:9", 1))
    reply = await rig.ask()
    assert reply.status == 503


async def test_a_second_attempt_that_is_slow_is_watched_once(rig: Rig, autojump_clock: MockClock) -> None:
    """The first endpoint refuses, the second takes a second: both attempts come up for watching, with one client."""
    told: list[float] = []

    async def slow(asked: Asked) -> None:
        told.append(await asked.wire.wait_closed())

    dead, alive = await rig.engine(), await rig.engine(slow)
    await dead.stop_listening()
    rig.publish(rig.endpoint(0, dead), rig.endpoint(1, alive))
    while not any("tiny/0" in name for name in rig.gateway.counters.samples()):  # until the dead one was drawn first
        wire = await rig.connect()
        await wire.send(rig.request())
        await trio.sleep(1)
        left = trio.current_time()
        wire.close()
        await rig.settled()
        await trio.sleep(0.2)
        assert told[-1] - left <= 0.1
    assert rig.records.last.endpoint == "tiny/1"


@pytest.mark.parametrize("place", range(9))
async def test_e03_characters_cut_at_every_byte(rig: Rig, place: int, autojump_clock: MockClock) -> None:
    content = "data: 你🚀\r\n\r\n".encode()
    cut = 5 + place

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.chunk(content[:cut])
        await held.wait()
        await asked.chunk(content[cut:])
        await asked.end_stream()

    held = trio.Event()
    await rig.serve(stream)
    async with await rig.connect() as wire:
        await wire.send(rig.request({"model": "tiny", "stream": True}))
        await wire.until(b"\r\n\r\n")
        # what came is passed on before the rest of the character is sent
        assert await wire.until(content[:cut] + b"\r\n") == b"%x\r\n%b\r\n" % (cut, content[:cut])
        held.set()
        assert (await wire.until(b"0\r\n\r\n")).startswith(b"%x\r\n%b" % (len(content) - cut, content[cut:]))


async def test_e03_a_line_of_two_mib_passes_and_its_usage_is_given_up_not_the_stream(
    rig: Rig, autojump_clock: MockClock
) -> None:
    content = b'data: {"usage":{"completion_tokens":9},"x":"' + b"y" * 2 * 1024**2 + b'"}\n\n'

    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.chunk(content)
        await asked.end_stream()

    await rig.serve(stream)
    async with await rig.connect() as wire:
        await wire.send(rig.request({"model": "tiny", "stream": True}))
        await wire.until(b"\r\n\r\n")
        expected = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
        assert await wire.exactly(len(expected)) == expected
    await rig.settled()
    assert (rig.records.last.completion_tokens, rig.records.last.exact) == (1, False)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"])
@pytest.mark.parametrize("engine_key", ["", "engine-secret-1"])
async def test_e17_whose_key_goes_where(rig: Rig, path: str, engine_key: str, autojump_clock: MockClock) -> None:
    """No client key in any header on any path; the keyed engine sees its own, the other none; a wrong key stops."""
    secret = "client-secret-1"
    keys = (ClientKey("team", hashlib.sha256(secret.encode()).hexdigest()),)
    engine = await rig.engine()
    rig.publish(rig.endpoint(0, engine, key=engine_key), keys=keys)
    headers = (
        f"Authorization: Bearer {secret}",
        f"x-api-key: {secret}",
        f"api-key: {secret}",
        f"cookie: k={secret}",
        f"proxy-authorization: Bearer {secret}",
        f"x-our-own: {secret}",
        "Connection: x-secret",
        "x-secret: 1",
        "Keep-Alive: timeout=5",
        "x-request-id: harmless-7",
    )
    answered = await rig.ask(None, *headers, path=path)
    assert answered.status == 200
    (asked,) = engine.asked
    assert secret not in json.dumps(asked.headers)
    assert asked.header("authorization") == (f"Bearer {engine_key}" if engine_key else None)
    assert not {"x-secret", "connection", "keep-alive", "cookie"} & {name for name, _ in asked.headers}
    assert asked.header("x-request-id") == "harmless-7"
    assert asked.header("host") == f"127.0.0.1:{engine.port}"
    listed = await rig.ask(None, *headers, path="/v1/models", method="GET")
    refused = await rig.ask(None, "Authorization: Bearer wrong-secret-1", path=path)
    assert (listed.status, refused.status, refused.error["code"]) == (200, 401, "invalid_api_key")
    assert len(engine.asked) == 1
    told = json.dumps([attrs.asdict(record) for record in rig.records.all], default=str)
    for hidden in (secret, "wrong-secret-1", "engine-secret-1"):
        assert hidden not in told
        assert hidden.encode() not in refused.head + refused.body + answered.head + answered.body


async def test_e10_e_http_1_0_with_keep_alive_is_ended_by_close(rig: Rig, autojump_clock: MockClock) -> None:
    await rig.serve()
    async with await rig.connect() as wire:
        await wire.send(rig.request(None, "Connection: keep-alive", version="1.0"))
        reply = await rig.read(wire)
        assert (reply.status, reply.body, reply.keep_alive) == (200, ANSWER, False)
        assert await wire.rest() == b""


async def test_a_client_that_leaves_while_it_sends_its_body_reaches_no_engine(
    rig: Rig, autojump_clock: MockClock
) -> None:
    (engine,) = await rig.serve()
    wire = await rig.connect()
    await wire.send(b"POST /v1/completions HTTP/1.1\r\nHost: g\r\nContent-Length: 1000\r\n\r\n{")
    wire.close()
    await rig.settled()
    assert engine.connections == 0
    assert rig.records.last.ending is Ending.CLIENT_LEFT


async def test_a_client_that_leaves_while_the_engine_is_dialled_ends_the_attempt(
    rig: Rig, autojump_clock: MockClock
) -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        fillers = [socket.socket() for _ in range(8)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        rig.publish(Endpoint("tiny/0", "tiny", f"http://127.0.0.1:{full.getsockname()[1]}", 1))
        wire = await rig.connect()
        await wire.send(rig.request())
        await trio.sleep(0.5)
        wire.close()
        await trio.sleep(0.1)
        assert not rig.gateway.clients
        for filler in fillers:
            filler.close()
    assert rig.records.last.ending is Ending.CLIENT_LEFT


async def test_an_answer_after_which_more_comes_is_the_last_of_its_connection(
    rig: Rig, autojump_clock: MockClock
) -> None:
    """Bytes that belong to nobody never become the answer to somebody else."""

    async def talks_on(asked: Asked) -> None:
        await asked.answer(ANSWER)
        await asked.wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")

    (engine,) = await rig.serve(talks_on)
    async with await rig.connect() as wire:
        for _ in range(3):
            await wire.send(rig.request())
            await trio.sleep(1)
            assert (await rig.read(wire)).body == ANSWER
    assert engine.connections >= 2


async def test_an_answer_cut_off_that_is_no_stream_does_not_look_whole(rig: Rig, autojump_clock: MockClock) -> None:
    async def half(asked: Asked) -> None:
        await asked.wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
        await trio.sleep(1)
        asked.wire.close()

    await rig.serve(half)
    reply = await rig.ask()
    assert (reply.status, reply.body, reply.complete) == (200, b"{", False)
    assert rig.records.last.ending is Ending.ENGINE_DIED


async def test_what_is_no_http_from_an_engine_is_a_502(rig: Rig, autojump_clock: MockClock) -> None:
    async def talks(asked: Asked) -> None:
        await asked.wire.send(b"SSH-2.0-OpenSSH\r\n\r\n")

    await rig.serve(talks)
    reply = await rig.ask()
    assert (reply.status, reply.error["code"]) == (502, "bad_gateway")


async def test_interim_answers_are_passed_over(rig: Rig, autojump_clock: MockClock) -> None:
    async def early(asked: Asked) -> None:
        await asked.wire.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n")
        await asked.answer(ANSWER)

    await rig.serve(early)
    assert (await rig.ask()).body == ANSWER


async def test_an_engine_stopped_at_the_end_of_its_drain_is_not_called_dead(
    rig: Rig, autojump_clock: MockClock
) -> None:
    async def stream(asked: Asked) -> None:
        await asked.begin_stream()
        await asked.event("1")
        await trio.sleep(2)
        asked.wire.close()

    (engine,) = await rig.serve(stream)
    async with await rig.connect() as wire:
        await wire.send(rig.request({"model": "tiny", "stream": True}))
        await wire.until(b"data: 1\n\n")
        rig.publish(rig.endpoint(0, engine, state="draining"))
        await wire.rest()
    await rig.settled()
    assert rig.records.last.ending is Ending.DRAINED
