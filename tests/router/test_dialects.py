"""Errors as clients expect them."""

import json

import pytest

from llmgw.router.dialects import MEANINGS, OF_HEADS, OPENAI, Problem, Trouble


def test_every_trouble_has_its_meaning() -> None:
    assert set(MEANINGS) == set(Trouble)


@pytest.mark.parametrize("trouble", Trouble)
def test_an_error_object_has_all_four_keys(trouble: Trouble) -> None:
    problem = Problem(trouble, 'it "failed"\nbadly', param="model")
    error = json.loads(OPENAI.body(problem))["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"] == 'it "failed"\nbadly'
    assert error["param"] == "model"
    assert 400 <= problem.status < 600
    assert error["type"] == ("server_error" if problem.status in {502, 503, 504} else "invalid_request_error")


@pytest.mark.parametrize(
    ("trouble", "status", "code"),
    [
        (Trouble.INVALID_KEY, 401, "invalid_api_key"),
        (Trouble.UNKNOWN_MODEL, 404, "model_not_found"),
        (Trouble.NOT_READY, 503, "server_is_overloaded"),
        (Trouble.INVALID_BODY, 400, None),
    ],
)
def test_codes_that_clients_look_for(trouble: Trouble, status: int, code: str | None) -> None:
    assert (MEANINGS[trouble].status, MEANINGS[trouble].code) == (status, code)


def test_an_event_is_one_line_of_data_and_a_blank_one() -> None:
    event = OPENAI.event(Problem(Trouble.ENGINE_FAILED, "a\nb\r\nc"))
    assert event.startswith(b'data: {"error":')
    assert event.endswith(b"}\n\n")
    assert event.count(b"\n") == 2
    assert b"\r" not in event


def test_statuses_of_heads_are_those_of_their_troubles() -> None:
    assert all(MEANINGS[trouble].status == status for status, trouble in OF_HEADS.items())
