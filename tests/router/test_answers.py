"""The router's own answers, as an HTTP client reads them."""

import json

import pytest

from llmgw.core.routing import ClientKey, RoutedModel
from llmgw.router.answers import answer, own, refusal
from llmgw.router.dialects import OPENAI, Problem, Trouble
from llmgw.router.http import parse_response
from llmgw.router.paths import Health, ModelDetail, ModelList, Ready
from llmgw.router.table import Table
from llmgw.wire.messages import RouteTable


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


def table_of(*models: RoutedModel, keys: tuple[ClientKey, ...] = ()) -> Table:
    made = Table()
    made.put(RouteTable("c", 1, models=models, keys=keys))
    return made


def test_models_in_openais_words() -> None:
    table = table_of(RoutedModel("tiny", aliases=("gpt",), created=7))
    status, body = own(ModelList(), table, None, draining=False)
    assert status == 200
    assert json.loads(body) == {
        "object": "list",
        "data": [{"id": "tiny", "object": "model", "created": 7, "owned_by": "llmgw"}],
    }
    assert json.loads(own(ModelDetail("gpt"), table, None, draining=False)[1])["id"] == "gpt"


def test_a_key_sees_its_models_alone() -> None:
    key = ClientKey("team", "0" * 64, ("tiny",))
    table = table_of(RoutedModel("tiny"), RoutedModel("other"), keys=(key,))
    listed = json.loads(own(ModelList(), table, key, draining=False)[1])
    assert [entry["id"] for entry in listed["data"]] == ["tiny"]
    with pytest.raises(Problem, match="other"):
        own(ModelDetail("other"), table, key, draining=False)


def test_ready_is_said_of_a_table_and_not_while_draining() -> None:
    table = table_of()
    assert own(Ready(), table, None, draining=False)[0] == 200
    assert own(Ready(), table, None, draining=True)[0] == 503
    assert own(Ready(), Table(), None, draining=False)[0] == 503
    assert own(Health(), Table(), None, draining=True)[0] == 200
