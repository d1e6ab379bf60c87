"""Heads: what is understood, what is refused, and what goes on."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmgw.router.http import (
    HEAD_BYTES_MAX,
    KNOWN_LINES_MAX,
    HeadError,
    RequestHead,
    find_head_end,
    parse_request,
    parse_response,
)

HALF = settings(max_examples=settings().max_examples // 2)


def request(
    *lines: bytes, first: bytes = b"POST /v1/chat/completions HTTP/1.1", host: bytes = b"Host: a"
) -> RequestHead:
    return parse_request(b"\r\n".join([line for line in (first, host, *lines) if line]) + b"\r\n\r\n")


# --- where a head ends ----------------------------------------------------------------------------------------


@HALF
@given(st.lists(st.sampled_from([b"\r", b"\n", b"a", b"GET / HTTP/1.1", b"\r\n"]), min_size=1, max_size=12), st.data())
def test_property_the_end_of_a_head_is_found_at_any_chunking(parts: list[bytes], data: st.DataObject) -> None:
    text = b"GET /" + b"".join(parts)
    try:
        whole = find_head_end(text)
    except HeadError:
        return
    size = data.draw(st.integers(1, len(text)))
    buffer = b""
    for start in range(0, len(text), size):
        searched = len(buffer)
        buffer += text[start : start + size]
        try:
            found = find_head_end(buffer, searched)
        except HeadError:
            assert b"\n\n" in buffer  # bare line feeds before the end of the head: refused as soon as they are seen
            return
        if found >= 0:
            assert found == whole
            return
    assert whole == -1


def test_an_oversized_head_is_431_whether_or_not_it_ends() -> None:
    for text in (b"G" * (HEAD_BYTES_MAX + 1), b"GET / HTTP/1.1\r\nX: " + b"y" * HEAD_BYTES_MAX + b"\r\n\r\n"):
        with pytest.raises(HeadError, match="64 KiB") as caught:
            find_head_end(text)
        assert caught.value.status == 431
    assert find_head_end(b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n") > 0


@pytest.mark.parametrize("text", [b"\x16\x03\x01", b"GET / HTTP/1.1\nHost: a\n\n", b"{}", b"\0"])
def test_what_can_become_no_head_is_refused_at_once(text: bytes) -> None:
    with pytest.raises(HeadError) as caught:
        find_head_end(text)
    assert caught.value.status == 400


# --- requests -------------------------------------------------------------------------------------------------


def test_a_request_is_understood() -> None:
    head = request(
        b"Authorization:  Bearer sk-1 ",
        b"Content-Length: 12",
        b"X-Custom:a",
        b"Expect: 100-Continue",
        b"X-Request-Id: req-7",
        b"content-type: application/json",
    )
    assert (head.method, head.target, head.minor) == (b"POST", b"/v1/chat/completions", 1)
    assert (head.length, head.chunked, head.keep_alive) == (12, False, True)
    assert (head.authorization, head.expect, head.request_id) == (b"Bearer sk-1", b"100-continue", "req-7")
    assert head.passed == [b"X-Custom:a", b"content-type: application/json"]


def test_headers_of_the_connection_and_credentials_are_taken_out() -> None:
    """Those of one hop, those that Connection names, and everything that carries a secret of the client."""
    head = request(
        b"Connection: x-secret, Keep-Alive",
        b"X-Secret: 1",
        b"x-secret: 2",
        b"Keep-Alive: timeout=5",
        b"TE: trailers",
        b"Trailer: x",
        b"Upgrade: h2c",
        b"HTTP2-Settings: AAA",
        b"Proxy-Connection: keep-alive",
        b"Proxy-Authorization: Basic x",
        b"Authorization: Bearer x",
        b"X-Api-Key: k",
        b"Api-Key: k2",
        b"Cookie: a=b",
        b"Accept: */*",
    )
    assert head.passed == [b"Accept: */*"]
    assert head.api_key == b"k2"
    assert head.keep_alive


@pytest.mark.parametrize(
    ("first", "lines", "keep_alive"),
    [
        (b"GET / HTTP/1.1", [], True),
        (b"GET / HTTP/1.1", [b"Connection: close"], False),
        (b"GET / HTTP/1.1", [b"Connection: a", b"Connection: b, Close"], False),
        (b"GET / HTTP/1.0", [], False),
        (b"GET / HTTP/1.0", [b"Connection: keep-alive"], True),
    ],
)
def test_keep_alive(first: bytes, lines: list[bytes], keep_alive: bool) -> None:
    assert request(*lines, first=first).keep_alive is keep_alive


def test_upgrade_is_ignored() -> None:
    """As Java's client sends it with every first request."""
    head = request(
        b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAM", b"Content-Length: 3"
    )
    assert (head.length, head.passed) == (3, [])


def test_absolute_targets_are_their_paths() -> None:
    assert request(first=b"GET http://gateway:8080/v1/models?x=1 HTTP/1.1").target == b"/v1/models?x=1"
    assert request(first=b"GET http://gateway HTTP/1.1").target == b"/"


@pytest.mark.parametrize(
    ("first", "lines", "status"),
    [
        (b"POST / HTTP/1.1", [b"Host: b"], 400),
        (b"POST / HTTP/1.1", [b"Content-Length: 5", b"Content-Length: 5"], 400),
        (b"POST / HTTP/1.1", [b"Content-Length: 5", b"Transfer-Encoding: chunked"], 400),
        (b"POST / HTTP/1.1", [b"Content-Length: +5"], 400),
        (b"POST / HTTP/1.1", [b"Content-Length: 5, 5"], 400),
        (b"POST / HTTP/1.1", [b"Content-Length: " + b"9" * 30], 400),
        (b"POST / HTTP/1.1", [b"Transfer-Encoding: identity, chunked"], 400),
        (b"POST / HTTP/1.1", [b"Transfer-Encoding: gzip, chunked"], 400),
        (b"POST / HTTP/1.1", [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], 400),
        (b"POST / HTTP/1.0", [b"Transfer-Encoding: chunked"], 400),
        (b"POST / HTTP/2.0", [], 505),
        (b"POST / HTTP/0.9", [], 505),
        (b"POST /", [], 400),
        (b"POST  / HTTP/1.1", [], 400),
        (b"BREW / HTTP/1.1", [], 400),
        (b"CONNECT a:80 HTTP/1.1", [], 400),
        (b"GET ftp://a/b HTTP/1.1", [], 400),
        (b"POST / HTTP/1.1", [b"no colon"], 400),
        (b"POST / HTTP/1.1", [b"X : blank"], 400),
        (b"POST / HTTP/1.1", [b"X: a\r\n folded"], 400),
        (b"POST / HTTP/1.1", [b"X: a\rb"], 400),
        (b"POST / HTTP/1.1", [b"X: a\0b"], 400),
        (b"POST / HTTP/1.1", [b"X: a\nY: b"], 400),
    ],
)
def test_ambiguous_and_malformed_requests_are_refused(first: bytes, lines: list[bytes], status: int) -> None:
    with pytest.raises(HeadError) as caught:
        request(*lines, first=first)
    assert caught.value.status == status


def test_no_host_is_refused_in_http_1_1_only() -> None:
    with pytest.raises(HeadError, match="exactly one Host"):
        request(host=b"")
    assert request(first=b"GET / HTTP/1.0", host=b"").minor == 0


@pytest.mark.parametrize("value", [b"", b"a b", b"x" * 129, b"\xc3\xa4", b"a\tb"])
def test_request_ids_that_cannot_be_repeated_are_not(value: bytes) -> None:
    assert request(b"X-Request-Id: " + value).request_id == ""


def test_lines_that_vary_do_not_fill_the_memory() -> None:
    for number in range(KNOWN_LINES_MAX + 10):
        assert request(b"X-Number: %d" % number).passed == [b"X-Number: %d" % number]


tokens = st.text("abcXYZ019-", min_size=1, max_size=12).map(str.encode)
values = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(str.encode)


@HALF
@given(st.lists(st.tuples(tokens.map(lambda name: b"X-" + name), values), max_size=8))
def test_property_unknown_headers_pass_byte_for_byte_in_order(headers: list[tuple[bytes, bytes]]) -> None:
    lines = [name + b": " + value for name, value in headers if name.lower() not in {b"x-api-key", b"x-request-id"}]
    assert request(*lines).passed == lines


pieces = st.sampled_from(
    [
        *[b"POST", b"GET", b" ", b"/", b"HTTP/1.1", b"\r\n", b"Host: a", b"Host:", b"Content-Length: 3", b"\n", b"\r"],
        *[b"Transfer-Encoding: chunked", b"Connection: close, x", b"\xff", b"\0", b"Upgrade: x", b"\t", b"HTTP/1.0"],
        *[b":", b"x", b","],
    ]
)


@given(
    st.sampled_from([b"", b"POST / HTTP/1.1\r\nHost: a\r\n", b"HTTP/1.1 200 OK\r\n"]),
    st.lists(pieces, max_size=14).map(b"".join),
)
def test_property_any_bytes_are_a_head_or_refused(beginning: bytes, text: bytes) -> None:
    """Nothing but HeadError comes out, and a head that is taken is one that llhttp takes."""
    text = beginning + text + b"\r\n\r\n"
    text = text[: text.find(b"\r\n\r\n") + 4]
    for parse in (parse_request, parse_response):
        with contextlib.suppress(HeadError):
            head = parse(text)
            assert not any(b"\r" in line or b"\n" in line for line in head.passed)


# --- answers --------------------------------------------------------------------------------------------------


def test_an_answer_is_understood() -> None:
    head = parse_response(
        b"HTTP/1.1 200 Fine by me\r\nServer: uvicorn\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        b"Transfer-Encoding: chunked\r\nX-Request-Id: theirs\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n"
        b"Cache-Control: max-age=1\r\n\r\n"
    )
    assert (head.status, head.reason, head.keep_alive) == (200, b"200 Fine by me", True)
    assert (head.chunked, head.length, head.event_stream, head.encoded) == (True, None, True, False)
    assert head.passed == [b"Server: uvicorn", b"Content-Type: text/event-stream; charset=utf-8"]


def test_an_answer_that_is_no_stream_keeps_its_cache_control() -> None:
    head = parse_response(
        b"HTTP/1.0 404\r\nCache-Control: no-store\r\nContent-Length: 4\r\nContent-Encoding: gzip\r\n\r\n"
    )
    assert (head.status, head.reason, head.length, head.encoded, head.keep_alive) == (404, b"404", 4, True, False)
    assert head.passed == [b"Content-Encoding: gzip", b"Cache-Control: no-store"]


@pytest.mark.parametrize(
    "text",
    [
        b"HTTP/1.1 099 Low",
        b"HTTP/1.1 2000 High",
        b"HTTP/2 200 OK",
        b"HTTP/2.0 200 OK",
        b"ICY 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked",
    ],
)
def test_answers_that_cannot_be_passed_on_are_refused(text: bytes) -> None:
    with pytest.raises(HeadError):
        parse_response(text + b"\r\n\r\n")
