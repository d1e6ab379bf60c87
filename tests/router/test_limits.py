"""Keys: whose a request is, and what it may use."""

import hashlib

import pytest

from llmgw.core.routing import ClientKey
from llmgw.router.dialects import Problem, Trouble
from llmgw.router.http import RequestHead
from llmgw.router.limits import Keys, presented


def head(authorization: bytes = b"", api_key: bytes = b"") -> RequestHead:
    return RequestHead(b"POST", b"/", 1, True, authorization=authorization, api_key=api_key)


def client_key(secret: str, *models: str) -> ClientKey:
    return ClientKey(f"team {secret}", hashlib.sha256(secret.encode()).hexdigest().upper(), models)


@pytest.mark.parametrize(
    ("request_head", "key"),
    [
        (head(b"Bearer sk-1"), b"sk-1"),
        (head(b"bearer  sk-1 "), b"sk-1"),
        (head(b"Bearer"), b""),
        (head(b"Basic abc"), b""),
        (head(b"Basic abc", b"sk-2"), b""),
        (head(b"", b"sk-2"), b"sk-2"),
        (head(), b""),
    ],
)
def test_where_a_key_is_looked_for(request_head: RequestHead, key: bytes) -> None:
    assert presented(request_head) == key


def test_without_keys_nobody_needs_one() -> None:
    keys = Keys(())
    assert not keys.required
    assert keys.check(b"") is None
    assert keys.check(b"anything") is None
    assert keys.allows(None, "tiny")


def test_a_right_key_is_known_by_its_hash() -> None:
    keys = Keys((client_key("a"), client_key("b", "tiny")))
    first, second = keys.check(b"a"), keys.check(b"b")
    assert first is not None
    assert second is not None
    assert (first.name, second.name) == ("team a", "team b")
    assert keys.allows(first, "anything")
    assert keys.allows(second, "tiny")
    assert not keys.allows(second, "large")


@pytest.mark.parametrize("key", [b"", b"c", b"A", b"a ", b"\xff", b"a" * 10_000])
def test_a_wrong_key_is_refused_and_not_repeated(key: bytes) -> None:
    with pytest.raises(Problem) as caught:
        Keys((client_key("a"),)).check(key)
    assert caught.value.trouble is Trouble.INVALID_KEY
    assert caught.value.message == "invalid API key: " + (
        "it is not one of this gateway's" if key else "expected `Authorization: Bearer KEY`"
    )
