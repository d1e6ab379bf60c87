"""Records: what an answer's end says about tokens, and what is counted."""

import pytest

from llmgw.router.records import TAIL_BYTES, Counters, Ending, Record, usage_in


@pytest.mark.parametrize(
    ("pieces", "usage"),
    [
        ([b'{"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}'], (3, 5)),
        ([b'{"usage": {"completion_tokens": 5, "prompt_tokens": 3}}'], (3, 5)),
        ([b'{"data":[],"usage":{"prompt_tokens":7,"total_tokens":7}}'], (7, None)),
        ([b'"choices":[],"usage":{"prompt_', b'tokens":3,"completion_tokens":51}}\n\n', b"data: [DONE]\n\n"], (3, 51)),
        ([b'"usage":null}\n\ndata: {"usage":{"prompt_tokens":1,"completion_tokens":2}}'], (1, 2)),
        (
            [
                b'"usage":{"prompt_tokens":1,"completion_tokens":2}',
                b'"usage":{"prompt_tokens":1,"completion_tokens":3}',
            ],
            (1, 3),
        ),
        ([b'"usage":{"prompt_tokens":1,"completion_tokens":2}}', b'data: {"usage":null}'], (1, 2)),
        ([b'"usage":null'], None),
        ([b'"usage":{"input":3}'], None),
        ([b'{"usage":{}}'], None),
        ([b""], None),
        ([], None),
    ],
)
def test_usage_is_what_the_engine_said_last(pieces: list[bytes], usage: object) -> None:
    assert usage_in(pieces) == usage


def test_a_number_that_is_cut_by_the_framing_is_not_taken() -> None:
    """12 of 123 would be believed; rather count."""
    assert usage_in([b'"usage":{"completion_tokens":12', b"\r\n5\r\n", b'3,"x":1}']) is None


def test_only_the_end_is_looked_at() -> None:
    early = b'"usage":{"prompt_tokens":1,"completion_tokens":2}'
    assert usage_in([early + b"x" * TAIL_BYTES]) is None


def test_counters_as_prometheus_writes_them() -> None:
    counters = Counters()
    done = Record(0.0, model="tiny", status=200, ending=Ending.DONE, prompt_tokens=3, completion_tokens=5)
    counters.count(done)
    counters.count(done)
    counters.count(Record(0.0, model="tiny", status=200, ending=Ending.CLIENT_LEFT, completion_tokens=4, exact=False))
    counters.count(Record(0.0, status=404, ending=Ending.REFUSED))
    counters.count_failure("tiny", 'a"b\\c\nd', "died")
    assert counters.samples() == {
        'llmgw_router_requests_total{model="tiny",code="200"}': 3,
        'llmgw_router_requests_total{model="",code="404"}': 1,
        'llmgw_router_endings_total{model="tiny",ending="done"}': 2,
        'llmgw_router_endings_total{model="tiny",ending="client left"}': 1,
        'llmgw_router_endings_total{model="",ending="refused"}': 1,
        'llmgw_router_tokens_total{model="tiny",kind="prompt",counted="exact"}': 6,
        'llmgw_router_tokens_total{model="tiny",kind="completion",counted="exact"}': 10,
        'llmgw_router_tokens_total{model="tiny",kind="completion",counted="estimated"}': 4,
        'llmgw_router_failures_total{model="tiny",endpoint="a\\"b\\\\c\\nd",kind="died"}': 1,
    }
