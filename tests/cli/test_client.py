"""Asking control's admin server, and what a person is told when it does not answer."""

import socket
import threading
from typing import Any

import pytest

from llmgw.cli.client import Admin, NotReached, choose_admin, get, wrong_answer


def test_the_option_comes_before_the_variable_and_that_before_the_default() -> None:
    environment = {"LLMGW_ADMIN_URL": "http://variable:1"}
    assert choose_admin("http://option:1/", environment) == Admin("http://option:1", "--admin")
    assert choose_admin(None, environment) == Admin("http://variable:1", "LLMGW_ADMIN_URL")
    assert choose_admin(None, {}) == Admin("http://127.0.0.1:7071", "the default")
    assert choose_admin(None, {"LLMGW_ADMIN_URL": ""}).origin == "the default"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("10.0.0.1:7071", "http://10.0.0.1:7071"),
        ("https://control.example/", "https://control.example"),
        ("[::1]:7071", "http://[::1]:7071"),
    ],
)
def test_an_address_without_a_scheme_is_enough(text: str, url: str) -> None:
    assert choose_admin(text, {}).url == url


@pytest.mark.parametrize(
    "text", ["ftp://x", "http://", "http://x:0", "http://x:99999", "http://a b", "http://x?q", "[::1"]
)
def test_what_is_no_http_url_is_refused_with_its_origin(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--admin: expected a URL as http://127\.0\.0\.1:7071, got "):
        choose_admin(text, {})


def test_the_body_of_an_answer(fake_control: Any) -> None:
    fake_control.body = b'{"a": 1}'
    assert get(Admin(fake_control.url, "--admin"), "/api/v1/status") == b'{"a": 1}'
    assert fake_control.paths == ["/api/v1/status"]


def test_nobody_listening_says_where_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotReached) as raised:
        get(Admin(f"http://127.0.0.1:{port}", "the default"), "/x")
    assert str(raised.value) == (
        f"cannot reach control at http://127.0.0.1:{port} (the default): connection refused\n"
        "Is llmgw-control running there? Its address is `[admin] listen` in cluster.toml; "
        "say another one with --admin URL or LLMGW_ADMIN_URL."
    )


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(NotReached, match=r"^cannot reach control at http://nobody\.invalid:1 \(--admin\): "):
        get(Admin("http://nobody.invalid:1", "--admin"), "/x")


def test_another_server_s_404_is_no_control(fake_control: Any) -> None:
    fake_control.code = 404
    with pytest.raises(NotReached, match=r"answered 404 Not Found to GET /x\nIs that `\[admin\] listen`"):
        get(Admin(fake_control.url, "--admin"), "/x")


def test_what_does_not_speak_http_is_no_control() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"\x00\x00\x00\x05hello\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(NotReached, match=r"answered what is not HTTP \(BadStatusLine\)"):
            get(Admin(f"http://127.0.0.1:{server.getsockname()[1]}", "--admin"), "/x")
        thread.join()


def test_an_answer_that_cannot_be_read() -> None:
    assert "gave an answer that this llmgw cannot read: it is blue" in str(wrong_answer(Admin("u", "o"), "it is blue"))
