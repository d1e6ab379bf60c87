"""The router's own answers, as an HTTP client reads them."""

import json

from llmgw.core.routing import RoutedModel
from llmgw.router.answers import answer, model_detail, model_list, refusal
from llmgw.router.dialects import OPENAI, Problem, Trouble
from llmgw.router.http import parse_response


def test_an_answer_is_a_whole_response() -> None:
    raw = answer(200, b'{"ok":true}', "id-1", close=False)
    head = parse_response(raw[: raw.index(b"\r\n\r\n") + 4])
    assert (head.status, head.length, head.keep_alive) == (200, 11, True)
    assert raw.endswith(b'\r\n\r\n{"ok":true}')
    assert b"x-request-id: id-1\r\n" in raw


def test_an_answer_to_head_has_the_head_only() -> None:
    raw = answer(200, b'{"ok":true}', "id-1", close=True, without_body=True)
    assert raw.endswith(b"connection: close\r\n\r\n")
    assert b"content-length: 11\r\n" in raw


def test_a_refusal_says_when_to_come_back() -> None:
    for seconds, header in ((5.0, b"retry-after: 5\r\n"), (0.2, b"retry-after: 1\r\n"), (1.1, b"retry-after: 2\r\n")):
        problem = Problem(Trouble.NOT_READY, "loading", retry_after_seconds=seconds)
        assert header in refusal(problem, OPENAI, "id-1", close=False)


def test_a_refusal_carries_what_its_status_asks_for() -> None:
    assert b"www-authenticate: Bearer\r\n" in refusal(Problem(Trouble.INVALID_KEY, "no"), OPENAI, "x", close=False)
    raw = refusal(Problem(Trouble.WRONG_METHOD, "no", allow=b"POST"), OPENAI, "x", close=True)
    assert b"allow: POST\r\n" in raw
    assert b"connection: close\r\n" in raw
    assert b"retry-after" not in raw


def test_models_in_openais_words() -> None:
    tiny = RoutedModel("tiny", aliases=("gpt",), created=7)
    listed = json.loads(model_list([tiny]))
    assert listed == {
        "object": "list",
        "data": [{"id": "tiny", "object": "model", "created": 7, "owned_by": "llmgw"}],
    }
    assert json.loads(model_detail(tiny, "gpt"))["id"] == "gpt"
