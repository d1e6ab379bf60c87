import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmgw.engines.probes import (
    SHOWN_CHARACTERS_MAX,
    check_probe,
    names_failure,
    names_request,
    probe_failure,
    probe_request,
)

PROBES = ("chat", "completion", "embedding", "rerank", "url:/ping")

ANSWERS: dict[str, Any] = {
    "chat": {"choices": [{"message": {"content": ""}}], "usage": {"completion_tokens": 1}},
    "completion": {"choices": [{"text": ""}], "usage": {"completion_tokens": 1}},
    "embedding": {"data": [{"embedding": [0.25, -1, 0.0]}]},
    "rerank": {"results": [{"index": 0, "relevance_score": -3.5}]},
}


@pytest.mark.parametrize("probe", [*PROBES, "url:/"])
def test_known_probes_are_no_mistake(probe: str) -> None:
    assert check_probe(probe) == ()


@pytest.mark.parametrize(
    "probe", ["", "Chat", "url:", "url:ping", "url:/a b", "url:/é", "url:/a\r\nX: y", "url:/path\t"]
)
def test_an_unknown_probe_is_one_mistake_with_the_choices(probe: str) -> None:
    (mistake,) = check_probe(probe)
    assert mistake.path == "probe"
    assert mistake.value == repr(probe)
    assert "chat, completion, embedding, rerank, url:/path" in mistake.expected


@pytest.mark.parametrize(
    ("probe", "path", "field"),
    [
        ("chat", "/v1/chat/completions", "messages"),
        ("completion", "/v1/completions", "prompt"),
        ("embedding", "/v1/embeddings", "input"),
        ("rerank", "/v1/rerank", "documents"),
    ],
)
def test_a_probe_asks_for_the_smallest_piece_of_real_work(probe: str, path: str, field: str) -> None:
    request = probe_request(probe, "org/name ü")
    body = json.loads(request.body)
    assert (request.method, request.path) == ("POST", path)
    assert request.headers == {"Accept": "application/json", "Content-Type": "application/json"}
    assert body["model"] == "org/name ü"
    assert body[field]
    assert body.get("max_tokens", 1) == 1
    assert "stream" not in body


def test_a_url_probe_is_a_get_of_that_path() -> None:
    request = probe_request("url:/ready?deep=1", "m")
    assert (request.method, request.path, request.body) == ("GET", "/ready?deep=1", b"")


@pytest.mark.parametrize("probe", PROBES)
def test_the_engine_s_key_is_sent_where_there_is_one(probe: str) -> None:
    assert probe_request(probe, "m", "s3cret").headers["Authorization"] == "Bearer s3cret"
    assert "Authorization" not in probe_request(probe, "m").headers
    assert names_request("s3cret").headers["Authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("probe", ANSWERS)
def test_a_real_answer_succeeds_even_with_empty_text(probe: str) -> None:
    assert probe_failure(probe, 200, json.dumps(ANSWERS[probe]).encode()) == ""


def test_a_url_probe_looks_at_the_status_alone() -> None:
    assert probe_failure("url:/x", 200, b"") == ""
    assert probe_failure("url:/x", 204, b"") == "answered 204: an empty body"


def test_a_base64_vector_is_a_vector() -> None:
    assert probe_failure("embedding", 200, b'{"data": [{"embedding": "AACAPw=="}]}') == ""


@pytest.mark.parametrize(
    ("probe", "body", "reason"),
    [
        ("chat", {"choices": [], "usage": {"completion_tokens": 0}}, "without usage.completion_tokens of at least 1"),
        ("chat", {"choices": [{"message": {"content": "hi"}}]}, "without usage.completion_tokens"),
        ("completion", {"usage": {"completion_tokens": "1"}}, "without usage.completion_tokens"),
        ("embedding", {"data": [{"embedding": []}]}, "without a vector"),
        ("embedding", {"data": [{"embedding": [None, None]}]}, "without a vector"),
        ("embedding", {"data": []}, "without a vector"),
        ("rerank", {"results": [{"relevance_score": None}]}, "without a score"),
        ("rerank", {"results": [{"relevance_score": True}]}, "without a score"),
        ("rerank", {"results": 3}, "without a score"),
        ("chat", [1], "without a JSON object"),
    ],
)
def test_a_200_that_computed_nothing_is_no_answer(probe: str, body: Any, reason: str) -> None:
    assert reason in probe_failure(probe, 200, json.dumps(body).encode())


def test_an_error_is_shown_with_its_status_and_words_cut_to_a_line() -> None:
    loading = b'{"error":{"message":"Loading\nmodel"}}'
    assert probe_failure("chat", 503, loading) == 'answered 503: {"error":{"message":"Loading model"}}'
    long = probe_failure("chat", 500, b"x" * 5000)
    assert len(long) == len("answered 500: ") + SHOWN_CHARACTERS_MAX + 1


def test_names_tell_whose_server_it_is() -> None:
    listed = b'{"object": "list", "data": [{"id": "other"}, {"id": "tiny"}]}'
    assert names_failure("tiny", 200, listed) == ""
    assert names_failure("mine", 200, listed) == "'mine' is not served there, but 'other', 'tiny'"
    assert names_failure("mine", 200, b'{"data": []}') == "'mine' is not served there, but nothing"
    assert names_failure("mine", 404, b"gone") == "/v1/models answered 404: gone"
    assert names_failure("mine", 200, b'{"data": {}}').startswith("/v1/models answered without a list")


@given(st.sampled_from(PROBES), st.integers(100, 599), st.binary(max_size=200))
def test_any_bytes_give_a_reason_or_none_and_never_raise(probe: str, status: int, body: bytes) -> None:
    reason = probe_failure(probe, status, body)
    assert "\n" not in reason
    assert names_failure("m", status, body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "embedding", "usage", "completion_tokens", "results", "relevance_score", "id"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(PROBES), JSON)
def test_any_json_gives_a_reason_or_none_and_never_raises(probe: str, value: Any) -> None:
    body = json.dumps(value).encode()
    assert isinstance(probe_failure(probe, 200, body), str)
    assert isinstance(names_failure("m", 200, body), str)


def test_json_nested_too_deep_is_no_answer() -> None:
    assert "without a JSON object" in probe_failure("chat", 200, b"[" * 100_000)
