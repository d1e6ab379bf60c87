"""Field case C11: why did it die. Only what is known is said."""

from typing import Any

import pytest

from llmgw.agent.exits import describe, name_signal, read_exit
from llmgw.agent.launch import Exited


@pytest.mark.parametrize(
    ("record", "cause", "error"),
    [
        ({"code": 1, "signal": None}, "exited", "exit code 1"),
        ({"code": 0, "signal": None, "stop_requested": True}, "exited", "exit code 0"),
        ({"signal": 9, "oom_kills": 1}, "host memory", "signal 9, killed by the kernel for host memory"),
        ({"signal": 9, "oom_kills": 0}, "signalled", "signal 9, sender unknown"),
        ({"signal": 9, "oom_kills": None}, "signalled", "signal 9, sender unknown"),
        ({"code": 137, "signal": None}, "exited", "exit code 137"),
        ({"code": 137, "signal": None, "oom_kills": 1}, "exited", "exit code 137"),
        ({"signal": 11}, "signalled", "signal 11 (SIGSEGV)"),
        ({"signal": 11, "oom_kills": 1}, "signalled", "signal 11 (SIGSEGV)"),
        ({"signal": 15, "stop_requested": True}, "signalled", "signal 15 (SIGTERM)"),
        (
            {"signal": 9, "stop_requested": True, "kill_sent": True},
            "signalled",
            "signal 9, sent by us when its grace was over",
        ),
        ({"signal": 9, "stop_requested": True, "kill_sent": False}, "signalled", "signal 9, sender unknown"),
        ({"port_taken": 20001}, "port taken", "port 20001 is taken, so nothing was launched"),
        ({"launch_error": "cannot execute x: no"}, "launch", "cannot execute x: no"),
    ],
)
def test_c11_cause_and_words(record: dict[str, Any], cause: str, error: str) -> None:
    assert describe(record) == (cause, error)


def test_a_whole_record() -> None:
    record = {"v": 1, "code": None, "signal": 9, "stop_requested": True, "kill_sent": True, "dropped_bytes": 5}
    assert read_exit(record, output="last words", age_seconds=3.0) == Exited(
        code=None,
        signal=9,
        cause="signalled",
        error="signal 9, sent by us when its grace was over",
        output="last words",
        requested=True,
        dropped_bytes=5,
        age_seconds=3.0,
    )


def test_a_record_of_another_version_and_a_clock_that_was_set_back() -> None:
    assert read_exit({"v": 9}, output="", age_seconds=-5.0) == Exited(cause="exited", error="exit code None")


def test_real_time_signals_have_no_name() -> None:
    assert [name_signal(6), name_signal(40)] == ["SIGABRT", "SIG40"]
