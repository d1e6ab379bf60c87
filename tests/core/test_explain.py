"""Refusals as people read them."""

from llmgw.core.explain import Explanation, Reason, Refusal, grouped, lines


def test_a_refusal_is_one_line() -> None:
    refusal = Refusal("n3", "gpu_memory", "needs 40 GiB, most free 31.2 GiB on GPU-ab12")
    assert str(refusal) == "n3: gpu_memory: needs 40 GiB, most free 31.2 GiB on GPU-ab12"


def test_the_same_words_of_several_nodes_are_one_reason() -> None:
    refusals = (Refusal("a", "gpus", "x"), Refusal("b", "gpus", "y"), Refusal("c", "gpus", "x"))
    assert grouped(refusals) == (Reason("gpus", ("a", "c"), "x"), Reason("gpus", ("b",), "y"))


def test_an_explanation_as_lines() -> None:
    explanation = Explanation("0 of 1 ready", (Reason("gpus", ("a", "c"), "x"),), "uncordon a")
    assert lines(explanation) == ("0 of 1 ready", "a: gpus: x", "c: gpus: x", "would help: uncordon a")
    assert lines(Explanation("fine")) == ("fine",)
