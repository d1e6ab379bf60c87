"""The demo from the first line to the last: what is started, what is said of it, and how all of it is ended again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import attrs

from llmgw.config.schema import ClusterConfig
from llmgw.demo.daemons import Daemon, Engine, Interrupts, children_of, left_of, start, wait_until_gone
from llmgw.demo.progress import Progress, Serving
from llmgw.demo.talk import Answer, TalkError, ask, question, reached_at, read_status
from llmgw.logs import printable
from llmgw.net.listening import AddressTakenError, bind

TINY_READY_SECONDS_MAX = 60.0
"""The tiny model is ready in two seconds; a busy machine has ten times that, and more."""
OWN_READY_SECONDS_MAX = 1200.0
"""As the default of `start_deadline`: a large model loads for many minutes."""
ROUTED_SECONDS_MAX = 10.0
"""From control's word that a replica is ready to the router's first answer: it takes milliseconds."""
STOP_SECONDS_MAX = 45.0
"""For each daemon: the agent gives its engine `stop_grace`, 20 s, before it kills it."""
GONE_SECONDS_MAX = 2.0
"""For processes whose parent has ended in order: they went before it."""
POLL_SECONDS = 0.05

ENDED_IN_ORDER = (0, -signal.SIGTERM)
"""Codes of a daemon that was told to stop; the second when it had not yet come to listen for that."""

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class DemoError(Exception):
    """The demo cannot go on. The arguments are the lines that say why."""


@attrs.frozen
class Plan:
    """What is run, decided before anything is started."""

    root: Path
    """The folder of the project."""
    cluster_toml: Path
    node_toml: Path
    environ: dict[str, str]
    """Of control."""
    config: ClusterConfig
    model: str
    """Catalog name of the one that is asked."""
    gguf: Path | None
    """The user's own; None: the tiny one."""
    once: bool


class Show:
    """One run of the demo. Every line about what happens begins with the seconds since it began."""

    def __init__(self, plan: Plan, interrupts: Interrupts) -> None:
        self._plan = plan
        self._interrupts = interrupts
        self._began = time.monotonic()
        self._daemons: list[Daemon] = []
        self._engines: dict[int, Engine] = {}
        """Every engine seen, by pid."""

    def perform(self) -> int:
        """Show everything, end everything; the exit code."""
        code, problems = 0, []
        try:
            self._play()
            if not self._plan.once:
                self._stay()
        except (DemoError, TalkError) as error:
            code, problems = EXIT_FAILED, [str(line) for line in error.args]
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        for problem in problems:
            self._say(problem)
        try:
            problems = self._stop()
        except KeyboardInterrupt:
            self.abort()
            problems = ["interrupted while stopping: what was left was killed"]
        for problem in problems:
            self._say(problem)
        return EXIT_FAILED if problems else code

    def abort(self) -> None:
        """Kill whatever is left, without patience. Nothing happens where everything has ended."""
        with self._interrupts.held():
            for daemon in reversed(self._daemons):
                if daemon.ended is None:
                    self._engines |= {child.pid: child for child in children_of(daemon.process.pid)}
                    daemon.kill()
            for pid in left_of(list(self._engines.values())):
                os.kill(pid, signal.SIGKILL)

    # --- up ---

    def _play(self) -> None:
        self._check_addresses()
        self._make_model()
        # Control first, else the agent would wait for its next try to reach it.
        self._start("llmgw-control", self._plan.cluster_toml, self._plan.environ)
        self._start("llmgw-agent", self._plan.node_toml, dict(os.environ) | {"LLMGW_STOP_ENGINES_ON_EXIT": "true"})
        serving = self._wait_ready()
        self._talk(serving)
        self._show_status()
        self._say("that was the demo" if self._plan.once else "everything is up")

    def _check_addresses(self) -> None:
        """Tell all that are taken, before anything is started."""
        control = self._plan.config.control.listen
        taken = []
        for variables, address in (
            (("LLMGW_CONTROL__LISTEN", "LLMGW_CONTROL"), control),
            (("LLMGW_ADMIN__LISTEN",), self._plan.config.admin.listen),
            (("LLMGW_ROUTER__LISTEN",), self._plan.config.router.listen),
        ):
            if address is None:
                raise DemoError(
                    f"{self._shown(self._plan.cluster_toml)} has no [control] listen, so there are no agents"
                )
            try:
                bind(address).close()
            except (AddressTakenError, OSError) as error:
                other = " ".join(f"{variable}={address.host}:PORT" for variable in variables)
                taken += [f"  {error}", f"    end that, or choose another port: {other} scripts/demo"]
        if taken:
            raise DemoError("the demo needs addresses that it cannot have:", *taken)

    def _make_model(self) -> None:
        path = self._plan.root / "var/models/tiny.gguf"
        if self._plan.gguf is not None:
            self._say(f"the model is {self._plan.gguf}")
        elif path.exists():
            self._say(f"the model is {self._shown(path)}: random weights")
        else:
            # Imported where it is needed: numpy takes longer than everything else in here.
            from llmgw.demo.tiny_model import Shape, write_tiny_model  # noqa: PLC0415

            write_tiny_model(path, Shape())
            self._say(f"made a model, {self._shown(path)}: random weights, {path.stat().st_size / 1e6:.1f} MB")

    def _start(self, name: str, configuration: Path, environ: dict[str, str]) -> None:
        log = self._plan.root / "var/demo" / f"{name.removeprefix('llmgw-')}.log"
        argv = [str(Path(sys.executable).parent / name), str(configuration)]
        with self._interrupts.held():
            daemon = start(name, argv, environ | {"LLMGW_LOG__FORMAT": "human"}, log)
            self._daemons.append(daemon)
        shown = f"{name} {self._shown(configuration)}"
        self._say(f"started {shown} (pid {daemon.process.pid}, log in {self._shown(log)})")

    def _wait_ready(self) -> Serving:
        """Say what changes until the model can be asked."""
        progress = Progress(self._plan.model)
        limit = TINY_READY_SECONDS_MAX if self._plan.gguf is None else OWN_READY_SECONDS_MAX
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            self._check_daemons()
            status = read_status(self._plan.config.admin.listen)
            if status is not None:
                for pid in progress.pids(status):
                    self._remember(pid)
                for line in progress.new_lines(status):
                    self._say(line)
                serving = progress.serving(status)
                if serving is not None:
                    return serving
                reasons = progress.hopeless(status)
                if reasons:
                    raise DemoError(*reasons)
            time.sleep(POLL_SECONDS)
        raise DemoError(f"{self._plan.model} was not ready within {limit:g} s", *self._tails())

    def _remember(self, pid: int) -> None:
        engine = None if pid in self._engines else Engine.of(pid)
        if engine is not None:
            self._engines[pid] = engine

    def _check_daemons(self) -> None:
        for daemon in self._daemons:
            if daemon.ended is not None:
                raise DemoError(
                    f"{daemon.name} has ended, code {daemon.ended}; its last words:", *_inset(daemon.tail())
                )

    # --- the answer ---

    def _talk(self, serving: Serving) -> None:
        """Stream one answer, token by token, and tell where it came from."""
        body = question(self._plan.model)
        answer = self._ask_when_routed(body)
        began = time.monotonic()
        _write(f"\n  you: {body['messages'][0]['content']}\n  {self._plan.model}: ")
        for piece in answer.pieces():
            _write(_visible(piece))
        seconds = time.monotonic() - began
        _write("\n\n")
        if self._plan.gguf is None:
            self._say("random weights: gibberish is right. scripts/demo PATH.gguf runs a model that knows something")
        self._say(
            f"replica {serving.replica} on node {serving.node}, engine pid {serving.pid}, "
            f"x-request-id {answer.request_id or 'none'}, {answer.tokens} tokens in {seconds:.2f} s"
        )

    def _ask_when_routed(self, body: dict[str, object]) -> Answer:
        """A router learns of a replica a moment after control."""
        deadline = time.monotonic() + ROUTED_SECONDS_MAX
        while True:
            self._check_daemons()
            try:
                return ask(self._plan.config.router.listen, body)
            except TalkError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _show_status(self) -> None:
        url = f"http://{reached_at(self._plan.config.admin.listen)}"
        _write(f"\n$ llmgw --admin {url} status\n")
        command = [str(Path(sys.executable).parent / "llmgw"), "--admin", url, "status"]
        if subprocess.run(command, check=False).returncode:
            raise DemoError("llmgw status failed, see above")
        _write("\n")

    def _stay(self) -> None:
        """Tell how to go on, then wait for Ctrl-C or for the end of a daemon."""
        router = reached_at(self._plan.config.router.listen)
        body = {"model": self._plan.model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
        if self._plan.gguf is None:
            body["max_tokens"] = 40  # the tiny model never ends by itself
        headers = "-H 'Content-Type: application/json'"
        _write(
            f"\nOpenAI-compatible: http://{router}/v1\n"
            f"Control:           http://{reached_at(self._plan.config.admin.listen)}\n\n"
            f"  curl -N http://{router}/v1/chat/completions {headers} -d '{json.dumps(body)}'\n\n"
            "Ctrl-C stops everything.\n"
        )
        try:
            while True:
                self._check_daemons()
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            _write("\n")

    # --- down ---

    def _stop(self) -> list[str]:
        """End what was started, the agent with its engines first; what did not end as it should."""
        problems = []
        running = [daemon for daemon in reversed(self._daemons) if daemon.ended is None]
        if running:
            self._say(f"stopping {', '.join(daemon.name for daemon in running)} and the engine")
        for daemon in running:
            if not daemon.stop(STOP_SECONDS_MAX):
                problems.append(f"{daemon.name} did not stop within {STOP_SECONDS_MAX:g} s and was killed")
            elif daemon.ended not in ENDED_IN_ORDER:
                problems += [f"{daemon.name} ended with code {daemon.ended}; its last words:", *_inset(daemon.tail())]
        left = wait_until_gone(list(self._engines.values()), GONE_SECONDS_MAX)
        if left:
            problems.append(f"the agent left processes behind, which are killed now: {', '.join(map(str, left))}")
        elif running:
            self._say("everything has ended")
        return problems

    def _tails(self) -> list[str]:
        lines = []
        for daemon in self._daemons:
            lines += [f"the end of {self._shown(daemon.log)}:", *_inset(daemon.tail())]
        return lines

    # --- words ---

    def _say(self, text: str) -> None:
        _write(f"{time.monotonic() - self._began:6.1f}s  {printable(text)}\n")

    def _shown(self, path: Path) -> str:
        return str(path.relative_to(self._plan.root)) if path.is_relative_to(self._plan.root) else str(path)


def _inset(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _visible(text: str) -> str:
    """A model's text may hold anything; what would steer the terminal is shown as a question mark in a box."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in text)


def _write(text: str) -> None:
    """To standard output. When its reader has gone, to nowhere: what was started has to be ended in order."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
