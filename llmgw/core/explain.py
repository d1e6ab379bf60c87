"""Why something is not as the catalog says: data, made by the code that decided, shown as it is."""

import attrs


@attrs.frozen
class Refusal:
    """One node that a rule refused. `str()`: `n3: gpu_memory: needs 40 GiB, most free 31.2 GiB on GPU-ab12`."""

    node: str
    rule: str
    detail: str
    """With the rule's numbers."""

    def __str__(self) -> str:
        return f"{self.node}: {self.rule}: {self.detail}"


@attrs.frozen
class Reason:
    """The same refusal of one or more nodes."""

    rule: str
    nodes: tuple[str, ...]
    detail: str


@attrs.frozen
class Explanation:
    """Of one model. As JSON it is `explanation` of `/api/v1/status`."""

    summary: str
    reasons: tuple[Reason, ...] = ()
    change: str = ""
    """What would help, where that is certain; empty: not known."""


def grouped(refusals: tuple[Refusal, ...]) -> tuple[Reason, ...]:
    """Refusals with the same rule and words as one reason, in the order of their first node."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for refusal in refusals:
        nodes.setdefault((refusal.rule, refusal.detail), []).append(refusal.node)
    return tuple(Reason(rule, tuple(names), detail) for (rule, detail), names in nodes.items())


def lines(explanation: Explanation) -> tuple[str, ...]:
    """The explanation for a person: the summary, a line for each node, the change."""
    refused = [
        str(Refusal(node, reason.rule, reason.detail)) for reason in explanation.reasons for node in reason.nodes
    ]
    change = (f"would help: {explanation.change}",) if explanation.change else ()
    return (explanation.summary, *refused, *change)
