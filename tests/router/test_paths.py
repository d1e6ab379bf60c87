"""Which path is what (field case E15)."""

import pytest

from llmgw.router.dialects import Problem, Trouble
from llmgw.router.paths import ANSWERED, RELAYED, Health, ModelDetail, ModelList, Ready, Relayed, find


@pytest.mark.parametrize(
    "path",
    [
        *["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/responses"],
        *["/tokenize", "/detokenize"],
    ],
)
def test_paths_that_engines_answer(path: str) -> None:
    for query in ("", "?api-version=1"):
        assert find(b"POST", (path + query).encode()) == Relayed(path.encode())


@pytest.mark.parametrize(
    ("path", "operation"),
    [
        ("/v1/models", ModelList()),
        ("/v1/models/", ModelList()),
        ("/v1/models?limit=3", ModelList()),
        ("/v1/models/tiny", ModelDetail("tiny")),
        ("/v1/models/Qwen/Qwen2.5-7B", ModelDetail("Qwen/Qwen2.5-7B")),
        ("/v1/models/Qwen%2FQwen2.5-7B", ModelDetail("Qwen/Qwen2.5-7B")),
        ("/v1/models/Qwen%2fQwen2.5-7B?x=1", ModelDetail("Qwen/Qwen2.5-7B")),
        ("/v1/models/a%20b", ModelDetail("a b")),
        ("/v1/models/%ff", ModelDetail("�")),
        ("/health", Health()),
        ("/ready", Ready()),
    ],
)
def test_paths_that_are_answered_here(path: str, operation: object) -> None:
    assert find(b"GET", path.encode()) == find(b"HEAD", path.encode()) == operation


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("//v1/models", "/v1/models"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/tokenize", "/tokenize"),
        ("/models", "/v1/models"),
    ],
)
def test_an_unknown_path_says_which_was_meant(path: str, meant: str) -> None:
    with pytest.raises(Problem) as caught:
        find(b"POST", path.encode())
    assert caught.value.trouble is Trouble.UNKNOWN_PATH
    assert caught.value.message == f"unknown path: POST {path} (did you mean {meant}?)"


@pytest.mark.parametrize("path", ["/", "*", "/v2/chat/completions", "/v1", "/healthz/x", "/v1/modelsx"])
def test_an_unknown_path_without_a_likely_one(path: str) -> None:
    with pytest.raises(Problem, match="unknown path: GET") as caught:
        find(b"GET", path.encode())
    assert "did you mean" not in caught.value.message


def test_a_wrong_method_names_the_right_ones() -> None:
    for path in RELAYED:
        with pytest.raises(Problem, match="takes POST, not GET") as caught:
            find(b"GET", path)
        assert (caught.value.trouble, caught.value.allow) == (Trouble.WRONG_METHOD, b"POST")
    for path in ANSWERED:
        for method in (b"POST", b"DELETE", b"OPTIONS"):
            with pytest.raises(Problem, match="takes GET, HEAD, not") as caught:
                find(method, path)
            assert caught.value.allow == b"GET, HEAD"
