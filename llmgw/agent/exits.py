"""From a shim's exit record to what is said of the end of an engine. Pure.

Only what is known is said: a SIGKILL is the kernel's for memory only where the cgroup's counter rose, and an exit
code of 137 is an exit code.
"""

import signal
from collections.abc import Mapping
from typing import Any

from llmgw.agent.launch import Exited
from llmgw.core.lifecycle import Cause


def read_exit(record: Mapping[str, Any], *, output: str, age_seconds: float) -> Exited:
    """`record` is what the shim wrote, of whatever version: an absent field is unknown."""
    code, number = record.get("code"), record.get("signal")
    cause, error = describe(record)
    return Exited(
        code=code,
        signal=number,
        cause=cause.value,
        error=error,
        output=output,
        requested=bool(record.get("stop_requested")),
        dropped_bytes=record.get("dropped_bytes") or 0,
        age_seconds=max(0.0, age_seconds),
    )


def describe(record: Mapping[str, Any]) -> tuple[Cause, str]:
    """The cause, and a line for a person. The first that applies."""
    if record.get("port_taken") is not None:
        return Cause.PORT_TAKEN, f"port {record['port_taken']} is taken, so nothing was launched"
    if record.get("launch_error"):
        return Cause.LAUNCH, str(record["launch_error"])
    if record.get("signal") is None:
        return Cause.EXITED, f"exit code {record.get('code')}"
    if record["signal"] != signal.SIGKILL:
        return Cause.SIGNALLED, f"signal {record['signal']} ({name_signal(record['signal'])})"
    if record.get("oom_kills"):
        return Cause.HOST_MEMORY, "signal 9, killed by the kernel for host memory"
    if record.get("kill_sent"):
        return Cause.SIGNALLED, "signal 9, sent by us when its grace was over"
    return Cause.SIGNALLED, "signal 9, sender unknown"


def name_signal(number: int) -> str:
    """`SIGSEGV`; a real-time signal has only its number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
