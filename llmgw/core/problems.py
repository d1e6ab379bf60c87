"""The open problems of a node: each opens once and clears once, and has an age in between."""

import attrs

from llmgw.core.hardware import Problem

PROBLEMS_MAX = 256
"""Kept at once: some for each GPU and adapter of the largest machine. Beyond, the latest are left out."""


@attrs.frozen
class OpenProblems:
    """What is wrong now, and since when. Two problems are the same if all but their age is."""

    since: dict[Problem, float] = attrs.field(factory=dict)

    def aged(self, now: float) -> tuple[Problem, ...]:
        """The whole list, for the wire."""
        return tuple(attrs.evolve(problem, since_seconds=max(0.0, now - at)) for problem, at in self.since.items())


def update(
    problems: OpenProblems, seen: tuple[Problem, ...], now: float
) -> tuple[OpenProblems, list[Problem], list[Problem]]:
    """The problems after `seen` was found, those that opened and those that cleared."""
    wanted = list(dict.fromkeys(attrs.evolve(problem, since_seconds=0.0) for problem in seen))[:PROBLEMS_MAX]
    opened = [problem for problem in wanted if problem not in problems.since]
    cleared = [problem for problem in problems.since if problem not in wanted]
    if not opened and not cleared:
        return problems, [], []
    return OpenProblems({problem: problems.since.get(problem, now) for problem in wanted}), opened, cleared
