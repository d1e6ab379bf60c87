"""How the shim turns a child of its own into the engine. Standard library only, and part of the shim."""

import errno
import os
import signal
import socket
from typing import Any, NoReturn

from llmgw.agent.procfs import PROC

MARK_VARIABLE = "LLMGW_MARK"
"""In the environment of every engine: the one thing that still proves a process ours when its shim is dead."""

OOM_SCORE_SHIM = -900
"""A shim is 12 MB and the only one that knows how a 100 GB engine ends."""
OOM_SCORE_STEP = 300
"""Where the shim cannot be protected, the engine is made the likelier choice."""
OOM_SCORE_MAX = 1000

RESET = ("CHLD", "TERM", "INT", "HUP", "QUIT", "PIPE", "XFSZ")
"""Signals that this process or its parent may have handled or ignored; an engine starts with the defaults."""


def engine_environment(env: dict[str, str], mark: str) -> dict[str, str]:
    """With the mark, and with what keeps setproctitle from writing over it."""
    return {**env, "SPT_NOENV": "1", MARK_VARIABLE: mark}


def port_taken(port: int) -> bool:
    """Whether somebody is bound to it at any address, with whatever options."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as test:
                test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections are no listener
                if family == socket.AF_INET6:
                    test.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                test.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True  # anything else is no listener: no such family here, or not allowed; the engine will say
    return False


def read_oom_kills(cgroup: str) -> int | None:
    """How often the kernel has killed for memory in a cgroup (version 2 or 1); None: unknown."""
    for name in ("memory.events", "memory.oom_control"):
        try:
            with open(f"{cgroup}/{name}") as file:  # noqa: PTH123
                counts = dict(line.split() for line in file)
            return int(counts["oom_kill"])
        except (OSError, KeyError, ValueError):
            continue
    return None


def lower_oom_score(root: str = PROC) -> int:
    """Protect this process where the kernel allows it; returns the score that the engine is to have."""
    path = f"{root}/self/oom_score_adj"
    try:
        with open(path) as file:  # noqa: PTH123
            score = int(file.read())
    except (OSError, ValueError):
        return 0
    try:
        write_text(path, str(OOM_SCORE_SHIM))
    except OSError:  # not allowed, most often even to root in a container
        return min(score + OOM_SCORE_STEP, OOM_SCORE_MAX)
    return score


def write_text(path: str, text: str) -> None:
    """One write to an existing file: what the kernel's files take. OSError."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def become_engine(request: dict[str, Any], output: int, errors: int, oom_score: int, umask: int) -> NoReturn:
    """In the forked child: execute the engine. What fails is written to `errors`; exec closes it without a word."""
    doing = "cannot prepare"
    try:
        os.setpgid(0, 0)
        for name in RESET:
            signal.signal(getattr(signal, f"SIG{name}"), signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.umask(umask)
        prefer_as_oom_victim(oom_score)
        if request["cgroup"]:
            doing = f"cannot enter the cgroup {request['cgroup']}"
            write_text(f"{request['cgroup']}/cgroup.procs", "0")
        doing = f"cannot enter the folder {request['cwd']}"
        os.chdir(request["cwd"])
        doing = f"cannot execute {request['argv'][0]}"
        execute(request["argv"], engine_environment(request["env"], request["mark"]))
    except OSError as error:
        os.write(errors, f"{doing}: {error.strerror}".encode(errors="replace"))
    except ValueError as error:  # a NUL in an argument, a blank name in the environment
        os.write(errors, f"{doing}: {error}".encode(errors="replace"))
    finally:
        os._exit(127)


def prefer_as_oom_victim(oom_score: int) -> None:
    """A preference: a refusal never fails a launch."""
    try:
        write_text(f"{PROC}/self/oom_score_adj", str(oom_score))
    except OSError:
        return


def execute(argv: list[str], env: dict[str, str]) -> NoReturn:
    """What execvpe does, without its lazy imports and with the refusal that explains most. OSError: not executed."""
    if "/" in argv[0]:
        os.execve(argv[0], argv, env)  # noqa: S606
    refused = OSError(errno.ENOENT, f"no such program in the folders of PATH ({env.get('PATH', '')})")
    for folder in env.get("PATH", "").split(":"):
        try:
            os.execve(os.path.join(folder or ".", argv[0]), argv, env)  # noqa: S606, PTH118
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            refused = error
    raise refused
