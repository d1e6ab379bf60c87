"""Ready means a real answer on a listener of its own; everything else has a reason, and slowness is not failure."""

import json
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from llmgw.agent.launch import Listener, Ours, Stranger, Unknown
from llmgw.agent.probe import (
    ANSWER_SECONDS,
    RESPONSE_BYTES_MAX,
    Exchange,
    ProbeError,
    Response,
    ask,
    probe,
    probe_until_answered,
)
from llmgw.core.held import Spec
from llmgw.engines.probes import ProbeRequest

REQUEST = ProbeRequest("POST", "/v1/chat/completions", {"Accept": "application/json"}, b'{"x":1}')
SPEC = Spec("tiny/0/0", 7, served_name="tiny", port=20001)
REAL = json.dumps({"usage": {"completion_tokens": 1}}).encode()


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


ANSWERS = [
    (http(REAL), Response(200, REAL)),
    (http(b"", "503 Service Unavailable"), Response(503, b"")),
    (b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{"\r\n3\r\nab}\r\n0\r\n\r\n', Response(200, b'{"ab}')),
]


@pytest.mark.parametrize(("raw", "response"), ANSWERS)
def test_an_answer_is_the_same_however_it_is_cut(raw: bytes, response: Response) -> None:
    assert Exchange(REQUEST, "127.0.0.1", 1).feed(raw) == response
    one_by_one = Exchange(REQUEST, "127.0.0.1", 1)
    for index in range(len(raw) - 1):
        assert one_by_one.feed(raw[index : index + 1]) is None
    assert one_by_one.feed(raw[-1:]) == response


def test_a_body_may_end_with_the_stream() -> None:
    exchange = Exchange(REQUEST, "127.0.0.1", 1)
    assert exchange.feed(b"HTTP/1.0 200 OK\r\n\r\nhal") is None
    assert exchange.feed(b"lo") is None
    assert exchange.end() == Response(200, b"hallo")


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection in the middle of its answer"),
        (http(REAL)[:-1], "closed the connection in the middle of its answer"),
        (ANSWERS[2][0][:-2], "closed the connection in the middle of its answer"),
    ],
)
def test_a_cut_answer_is_none(raw: bytes, reason: str) -> None:
    exchange = Exchange(REQUEST, "127.0.0.1", 1)
    exchange.feed(raw)
    with pytest.raises(ProbeError, match=f"^{reason}$"):
        exchange.end()


@pytest.mark.parametrize(
    "raw",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"],
)
def test_what_is_not_http_is_said(raw: bytes) -> None:
    with pytest.raises(ProbeError, match=r"^answered something other than HTTP/1\.1"):
        Exchange(REQUEST, "127.0.0.1", 1).feed(raw)


def test_an_endless_answer_is_bounded() -> None:
    exchange = Exchange(REQUEST, "127.0.0.1", 1)
    exchange.feed(b"HTTP/1.1 200 OK\r\n\r\n")
    for _ in range(RESPONSE_BYTES_MAX // 65536 - 1):
        exchange.feed(b"x" * 65536)
    with pytest.raises(ProbeError, match="answered more than"):
        exchange.feed(b"x" * 65536)


def test_the_request_is_whole() -> None:
    head, _, body = Exchange(REQUEST, "::1", 20001).request.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/chat/completions HTTP/1.1",
        b"Host: [::1]:20001",
        b"Connection: close",
        b"Accept: application/json",
        b"Content-Length: 7",
    ]
    assert body == b'{"x":1}'


# --- an engine ------------------------------------------------------------------------------------------------

Reply = Callable[[str], bytes | None]
"""Request line -> what the engine answers; None: nothing, ever."""


class FakeEngine:
    """Answers each connection by a function of the time."""

    def __init__(self, nursery: trio.Nursery, reply: Reply) -> None:
        self.nursery = nursery
        self.reply = reply
        self.requests: list[bytes] = []

    async def open(self, host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        assert (host, port) == ("127.0.0.1", 20001)
        ours, theirs = memory_stream_pair()
        self.nursery.start_soon(self._serve, theirs)
        return ours

    async def _serve(self, stream: trio.abc.Stream) -> None:
        async with stream:
            request = bytes(await stream.receive_some())
            self.requests.append(request)
            reply = self.reply(request.partition(b" HTTP")[0].decode())
            if reply is None:
                await trio.sleep_forever()
            else:
                await stream.send_all(reply)


def ours(port: int) -> Listener:
    assert port == 20001
    return Ours("known by its user")


async def refused(host: str, port: int) -> trio.abc.Stream:
    await trio.lowlevel.checkpoint()
    raise ConnectionRefusedError(111, "Connection refused")


async def reset(host: str, port: int) -> trio.abc.Stream:
    await trio.lowlevel.checkpoint()
    mine, theirs = memory_stream_pair()
    await theirs.aclose()
    return mine


async def test_a_real_answer_on_its_own_listener_is_ready(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    engine = FakeEngine(nursery, lambda _: http(REAL))
    assert await probe(SPEC, ours, engine.open) == "known by its user"
    assert engine.requests[0].startswith(b"POST /v1/chat/completions ")


@pytest.mark.parametrize(
    ("listener", "reason"),
    [
        (None, "does not listen on port 20001 yet"),
        (Stranger(42, "nginx"), r"port 20001 is listened on by nginx \(pid 42\), which is not of this shard"),
        (Stranger(None, ""), "port 20001 is listened on by somebody, which is not of this shard"),
        (Stranger(42, "nginx", shared=True), r"port 20001 is also listened on by nginx \(pid 42\), which is not"),
        (Unknown("no access"), "port 20001 is listened on, and it cannot be told by whom: no access"),
    ],
)
async def test_c05_c_and_d_somebody_elses_listener_is_never_asked(listener: Listener, reason: str) -> None:
    """(c) The stranger may answer whatever it likes. (d) Sharing a port with a stranger is a conflict, not ready."""
    with pytest.raises(ProbeError, match=reason):
        await probe(SPEC, lambda _: listener, refused)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (http(b'{"error":"Loading model"}', "503 Service Unavailable"), "answered 503: .*Loading model"),
        (http(b'{"usage":{"completion_tokens":0}}'), r"answered 200 without usage\.completion_tokens of at least 1"),
        (http(b"[]"), "answered 200 without a JSON object"),
    ],
)
async def test_what_is_no_real_answer_is_not_ready(
    autojump_clock: MockClock, nursery: trio.Nursery, reply: bytes, reason: str
) -> None:
    with pytest.raises(ProbeError, match=reason):
        await probe(SPEC, ours, FakeEngine(nursery, lambda _: reply).open)


async def test_without_the_listener_check_the_served_name_must_be_listed(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    spec = Spec("tiny/0/0", 7, served_name="tiny", port=20001, listener_check=False, key="s3cret")
    names = [b"other"]

    def reply(line: str) -> bytes:
        if line == "GET /v1/models":
            return http(b'{"data":[{"id":"%s"}]}' % names[0])
        return http(REAL)

    engine = FakeEngine(nursery, reply)
    with pytest.raises(ProbeError, match="'tiny' is not served there, but 'other'"):
        await probe(spec, lambda _: None, engine.open)
    names[0] = b"tiny"
    assert await probe(spec, lambda _: None, engine.open) == ""
    assert all(b"Authorization: Bearer s3cret" in request for request in engine.requests)


async def test_a_dead_or_silent_engine_has_a_reason(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    with pytest.raises(ProbeError, match="does not accept connections on port 20001: Connection refused"):
        await ask(refused, "127.0.0.1", 20001, REQUEST, 2.0)
    with pytest.raises(ProbeError, match="reset the connection"):
        await ask(reset, "127.0.0.1", 20001, REQUEST, 2.0)
    silent = FakeEngine(nursery, lambda _: None)
    before = trio.current_time()
    with pytest.raises(ProbeError, match="gave no answer to POST /v1/chat/completions within 2m00s"):
        await probe(SPEC, ours, silent.open)
    assert trio.current_time() - before == ANSWER_SECONDS
    nursery.cancel_scope.cancel()


async def test_c06_a_twelve_minutes_of_503_are_not_failure(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    def reply(_: str) -> bytes:
        return http(REAL) if trio.current_time() >= 720 else http(b"Loading model", "503 Service Unavailable")

    reasons: list[str] = []

    async def failed(reason: str) -> None:
        await trio.lowlevel.checkpoint()
        reasons.append(reason)

    await probe_until_answered(SPEC, ours, FakeEngine(nursery, reply).open, failed)
    assert 720 <= trio.current_time() <= 721
    assert reasons == ["answered 503: Loading model"]
