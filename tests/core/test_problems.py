"""Problems open once and clear once."""

from llmgw.core.hardware import Problem
from llmgw.core.problems import PROBLEMS_MAX, OpenProblems, update

NVML = Problem("nvml", "NVML: Unknown Error")
DISK = Problem("disk", "full")


def test_a_problem_opens_once_ages_and_clears_once() -> None:
    problems, opened, cleared = update(OpenProblems(), (NVML,), 10.0)
    assert (opened, cleared) == ([NVML], [])
    same, opened, cleared = update(problems, (NVML, NVML), 20.0)
    assert same is problems
    assert (opened, cleared) == ([], [])
    problems, opened, cleared = update(problems, (NVML, DISK), 30.0)
    assert (opened, cleared) == ([DISK], [])
    assert [problem.since_seconds for problem in problems.aged(40.0)] == [30.0, 10.0]
    problems, opened, cleared = update(problems, (DISK,), 50.0)
    assert (opened, cleared) == ([], [NVML])
    assert [problem.code for problem in problems.aged(50.0)] == ["disk"]


def test_an_age_makes_no_new_problem() -> None:
    problems, _, _ = update(OpenProblems(), (Problem("nvml", "x", since_seconds=5.0),), 10.0)
    _, opened, cleared = update(problems, (Problem("nvml", "x", since_seconds=7.0),), 12.0)
    assert (opened, cleared) == ([], [])


def test_the_list_is_bounded() -> None:
    problems, opened, _ = update(OpenProblems(), tuple(Problem("x", str(n)) for n in range(1000)), 0.0)
    assert len(problems.aged(0.0)) == len(opened) == PROBLEMS_MAX
