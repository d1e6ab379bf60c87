"""The shim: one small process per engine, which outlives every agent, keeps the engine's output and knows how it ended.

Run as `python -I -S shim.py FOLDER` with one JSON object on standard input, the launch request (`REQUEST` in
shim_protocol.py). It answers one line on standard output: `{"v": 1, "shim_pid": N}`, or `{"v": 1, "error": "..."}`
and nothing was launched. This file is only the entry (a script is compiled at each start and its compiler's memory
stays, 2 MB); the machine is in shim_machine.py.

Standard library only, one thread, everything imported at the start: a shim lives for months, while the agent and
the Python installation under it are upgraded. So **what is written here is frozen**: fields and commands are
added, never renamed, retyped or reused, and a newer agent asks `hello` which commands a shim knows.

Theory of operation
    The shim leads a session of its own and is a child subreaper: no descendant of the engine can leave its tree.
    It alone reaps, in one place, so no exit status is lost or given to the wrong process. Phases only go down:

        launching   record and socket exist; the engine is forked and not yet executed
        running     executed (`started`)
        exited      the engine's own process ended or could not be executed (`exited`); SIGKILL to what it left
        gone        not one process is left (`gone`). The shim ends on `forget` or SIGTERM, or by itself when no client
                    is connected and one was told (UNTOLD_SECONDS: nobody came, and the exit record says it all)

    SIGTERM to the shim stops the engine in order, and the shim ends once all are gone. SIGKILL to the shim leaves a
    folder with neither a live shim nor an exit record; the agent ends the session then.

Files in FOLDER, opened through one descriptor of it (a socket's path ends at 108 bytes), written whole and renamed
    record.json   who this is (`Shim.record`), before anything is launched; again with the engine's pid
    shim.sock     the protocol
    output.log    standard output and error as one, and output.1.log before it
    exit.json     how the engine ended (`Shim.end`), and `gone`
    shim.log      what the shim itself had to complain about; made by the agent

Protocol: lines of JSON, each an object with "v". Any number of clients, at any time.
    client   {"v": 1, "id": any, "command": NAME, ...}
    shim     {"v": 1, "id": the same, "ok": {...}}  or  {"v": 1, "id": the same, "error": "what was wrong"}
    shim     {"v": 1, "event": "started" | "exited" | "gone", ...}    to clients that have sent `attach`

    hello                             who this is, and the names of the commands
    state                             phase, engine, exit
    attach                            the same as `state`; from then on this client gets every event
    output bytes_max                  base64 of the end of the output
    stop grace_seconds second_term    SIGTERM to the engine's process group; after the grace (with second_term another
                                      SIGTERM, SECOND_TERM_SECONDS, then) SIGKILL to every descendant. Again: only
                                      ever brings the end nearer
    signal signal                     to the engine's process group
    forget                            once gone: the shim ends
"""

import contextlib
import ctypes
import json
import os
import sys

if __name__ == "__main__":  # -I -S leaves only the standard library on the path; behind it, the package's root
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120

from llmgw.agent.shim_engine import lower_oom_score
from llmgw.agent.shim_machine import Shim
from llmgw.agent.shim_protocol import PROTOCOL, Json, read_request

PR_SET_CHILD_SUBREAPER = 36


def close_inherited() -> None:
    """Whatever the agent was started with (a lock, a log) would be held for months."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        if int(name) > 2:  # noqa: PLR2004
            with contextlib.suppress(OSError):  # the one that this was read through
                os.close(int(name))


def become_subreaper() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")


def main() -> int:
    """Until the engine is gone and forgotten. 1: nothing was launched."""
    close_inherited()
    umask = os.umask(0o077)
    try:
        os.setsid()
        become_subreaper()
        folder = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
        os.chdir("/")
        shim = Shim(folder, read_request(sys.stdin.buffer.read()))
        oom_score = lower_oom_score()
        shim.open()
    except (OSError, ValueError) as error:
        reply({"error": str(error)})
        return 1
    reply({"shim_pid": os.getpid()})
    shim.launch(oom_score, umask)
    shim.run()
    return 0


def reply(message: Json) -> None:
    """The one line for the agent that started us; then both ends of the conversation are closed."""
    with contextlib.suppress(OSError):  # it has died meanwhile, and the next one finds us by the record
        os.write(1, json.dumps({"v": PROTOCOL, **message}).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
