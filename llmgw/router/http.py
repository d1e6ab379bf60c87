"""HTTP heads, of requests and of answers: bytes in, what the relay needs to know out. No I/O.

llhttp decides whether a head is well formed; what it lets through and a relay must not (two Hosts, codings besides
`chunked`, other versions) is refused here, since two parties that read one head differently is how requests are
smuggled. A line that goes on goes on as its own bytes.

What is taken out of a request, and never reaches an engine: what belongs to one connection (and whatever `Connection`
names), whatever carries a client's credentials, and what the relay writes anew (Host, Content-Length, x-request-id).
"""

import attrs
import httptools

from llmgw.errors import LlmgwError

HEAD_BYTES_MAX = 64 * 1024
"""Of a request's head (431 beyond) and of an answer's: cookies and tokens of every size in use fit."""

KNOWN_LINES_MAX = 4096
"""Header lines that are remembered as ones that pass: clients send the same few over and over."""
KNOWN_LINE_BYTES_MAX = 200

REQUEST_ID_CHARS_MAX = 128

END = b"\r\n\r\n"


class HeadError(LlmgwError):
    """A head that is refused: `status` for a client; from an engine it is a 502 whatever `status` says."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@attrs.define
class RequestHead:
    """What a client asks for."""

    method: bytes
    target: bytes
    """As sent, with its query; of an absolute one the path."""
    minor: int
    """Of HTTP/1.x."""
    keep_alive: bool
    passed: list[bytes] = attrs.field(factory=list)
    """Header lines that go to the engine, as they came."""
    length: int = 0
    chunked: bool = False
    expect: bytes = b""
    content_encoding: bytes = b""
    authorization: bytes = b""
    api_key: bytes = b""
    """Of `x-api-key` or `api-key`."""
    request_id: str = ""
    """As the client named it; empty: it did not, or not in a way that can be passed on."""


@attrs.define
class ResponseHead:
    """How an engine answers."""

    status: int
    reason: bytes
    """The rest of the status line, `200 OK`."""
    keep_alive: bool
    passed: list[bytes] = attrs.field(factory=list)
    """Header lines that go to the client, as they came."""
    length: int | None = None
    chunked: bool = False
    event_stream: bool = False
    encoded: bool = False
    """It has a Content-Encoding: nothing of ours can be written into the body."""


class _Silent:
    """llhttp reports to nobody: with no callback it validates a head without entering Python."""


_SILENT = _Silent()

_CONNECTION_ONLY = (b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade", b"http2-settings")
_CREDENTIALS = (b"proxy-authorization", b"proxy-authenticate", b"cookie")

_DROP, _CONNECTION, _LENGTH, _CODING, _HOST, _EXPECT, _ENCODING, _AUTHORIZATION, _API_KEY, _ID, _TYPE, _SERVED = range(
    12
)

_REQUEST_LINES = {
    **dict.fromkeys(_CONNECTION_ONLY, _DROP),
    **dict.fromkeys(_CREDENTIALS, _DROP),
    b"connection": _CONNECTION,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"host": _HOST,
    b"expect": _EXPECT,
    b"content-encoding": _ENCODING,
    b"authorization": _AUTHORIZATION,
    b"x-api-key": _API_KEY,
    b"api-key": _API_KEY,
    b"x-request-id": _ID,
}
"""Names of request headers that are more than passed on."""

_RESPONSE_LINES = {
    **dict.fromkeys(_CONNECTION_ONLY, _DROP),
    b"proxy-authenticate": _DROP,
    b"x-request-id": _DROP,
    b"connection": _CONNECTION,
    b"content-length": _LENGTH,
    b"transfer-encoding": _CODING,
    b"content-type": _TYPE,
    b"content-encoding": _ENCODING,
    b"cache-control": _SERVED,
    b"x-accel-buffering": _SERVED,
}
"""The same of answers. `_SERVED`: replaced on event streams, where a cache or a buffer on the way does harm."""

_known_request_lines: set[bytes] = set()
_known_response_lines: set[bytes] = set()


def find_head_end(buffer: bytes | bytearray, searched: int = 0) -> int:
    """Where the head in `buffer` ends (the index after its blank line), or -1 while it is not there.

    `searched` bytes were looked through before. Raises HeadError for what can never become a head (over the limit,
    or not HTTP/1 from its first byte on).
    """
    found = buffer.find(END, max(0, searched - 3))
    if 0 <= found <= HEAD_BYTES_MAX:
        return found + 4
    if found >= 0 or len(buffer) > HEAD_BYTES_MAX:
        raise HeadError(431, f"the request's head is larger than {HEAD_BYTES_MAX // 1024} KiB")
    if buffer and not 65 <= buffer[0] <= 90:  # noqa: PLR2004  A to Z, as methods begin
        raise HeadError(400, "this is not an HTTP/1.1 request")
    if buffer.find(b"\n\n", max(0, searched - 3)) >= 0:
        raise HeadError(400, "lines of a head end in CR LF")
    return -1


def parse_request(head: bytes) -> RequestHead:
    """The request whose head (up to and including its one blank line, at the end) is `head`. Raises HeadError."""
    _validate(httptools.HttpRequestParser(_SILENT), head)
    lines = head[:-4].split(b"\r\n")
    words = lines[0].split(b" ")
    if len(words) != 3 or words[2] not in {b"HTTP/1.1", b"HTTP/1.0"}:  # noqa: PLR2004
        raise HeadError(505 if len(words) == 3 else 400, "expected HTTP/1.1 or HTTP/1.0")  # noqa: PLR2004
    minor = words[2][7] - 48
    request = RequestHead(words[0], _origin_form(words[1]), minor, minor == 1)
    passed, known = request.passed, _known_request_lines
    hosts = 0
    named: list[bytes] = []
    for line in lines[1:]:
        if line in known:
            passed.append(line)
            continue
        name, _, value = line.partition(b":")
        kind = _REQUEST_LINES.get(name.lower())
        if kind is None:
            passed.append(line)
            _remember(line, known)
        elif kind == _HOST:
            hosts += 1
        elif kind == _LENGTH:
            request.length = int(value)
        elif kind == _AUTHORIZATION:
            request.authorization = value.strip(b" \t")
        elif kind == _CONNECTION:
            named += _tokens(value)
        elif kind == _CODING:
            request.chunked = _is_chunked(value, request.chunked, minor)
        elif kind == _EXPECT:
            request.expect = value.strip(b" \t").lower()
        elif kind == _ENCODING:
            request.content_encoding = value.strip(b" \t").lower()
            passed.append(line)
        elif kind == _API_KEY:
            request.api_key = value.strip(b" \t")
        elif kind == _ID:
            request.request_id = _request_id(value.strip(b" \t"))
    if hosts > 1 or (hosts == 0 and minor == 1):
        raise HeadError(400, "expected exactly one Host header")
    request.keep_alive = _keeps_alive(minor, named)
    if named:
        request.passed = _without(passed, named)
    return request


def parse_response(head: bytes) -> ResponseHead:
    """The answer whose head is `head`. Raises HeadError for what is no answer that can be passed on."""
    _validate(httptools.HttpResponseParser(_SILENT), head)
    lines = head[:-4].split(b"\r\n")
    version, _, reason = lines[0].partition(b" ")
    if version not in {b"HTTP/1.1", b"HTTP/1.0"} or len(reason) < 3 or not reason[:3].isdigit():  # noqa: PLR2004
        raise HeadError(502, "expected an answer in HTTP/1.1 or HTTP/1.0")
    minor = version[7] - 48
    response = ResponseHead(int(reason[:3]), reason, minor == 1)
    if response.status < 100:  # noqa: PLR2004
        raise HeadError(502, f"expected a status from 100 on, got {response.status}")
    passed, known = response.passed, _known_response_lines
    named: list[bytes] = []
    served: list[bytes] = []
    for line in lines[1:]:
        if line in known:
            passed.append(line)
            continue
        name, _, value = line.partition(b":")
        kind = _RESPONSE_LINES.get(name.lower())
        if kind is None:
            passed.append(line)
            _remember(line, known)
        elif kind == _LENGTH:
            response.length = int(value)
        elif kind == _CODING:
            response.chunked = _is_chunked(value, response.chunked, minor)
        elif kind == _TYPE:
            response.event_stream = value.strip(b" \t").lower().startswith(b"text/event-stream")
            passed.append(line)
        elif kind == _ENCODING:
            response.encoded = value.strip(b" \t").lower() not in {b"", b"identity"}
            passed.append(line)
        elif kind == _CONNECTION:
            named += _tokens(value)
        elif kind == _SERVED:
            served.append(line)
    response.keep_alive = _keeps_alive(minor, named)
    if not response.event_stream:
        passed += served
    if named:
        response.passed = _without(passed, named)
    return response


def _validate(parser: "httptools.HttpRequestParser | httptools.HttpResponseParser", head: bytes) -> None:
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        # An Upgrade is not taken up, which is the answer to it; the request is one like any other.
        pass
    except httptools.HttpParserError as error:
        raise HeadError(400, f"malformed HTTP: {error}") from None


def _origin_form(target: bytes) -> bytes:
    if target.startswith(b"/") or target == b"*":
        return target
    scheme, separator, rest = target.partition(b"://")
    if separator and scheme.lower() in {b"http", b"https"}:
        return b"/" + rest.partition(b"/")[2]
    raise HeadError(400, "expected a path")


def _is_chunked(value: bytes, already: bool, minor: int) -> bool:
    if already or minor == 0 or value.strip(b" \t").lower() != b"chunked":
        raise HeadError(400, "expected no Transfer-Encoding but `chunked`, once, and only in HTTP/1.1")
    return True


def _tokens(value: bytes) -> list[bytes]:
    return [token.strip(b" \t").lower() for token in value.split(b",")]


def _keeps_alive(minor: int, named: list[bytes]) -> bool:
    return b"close" not in named and (minor == 1 or b"keep-alive" in named)


def _without(passed: list[bytes], named: list[bytes]) -> list[bytes]:
    return [line for line in passed if line.partition(b":")[0].lower() not in named]


def _remember(line: bytes, known: set[bytes]) -> None:
    if len(line) <= KNOWN_LINE_BYTES_MAX:
        if len(known) >= KNOWN_LINES_MAX:
            known.clear()
        known.add(line)


def _request_id(value: bytes) -> str:
    """As text if it may be repeated in heads and logs: visible ASCII of a sane length."""
    if 0 < len(value) <= REQUEST_ID_CHARS_MAX and value.isascii() and b" " not in value:
        text = value.decode("ascii")
        if text.isprintable():
            return text
    return ""
