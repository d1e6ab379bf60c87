"""A cluster of real processes on loopback, for the end-to-end tests.

Every wait is by polling what a user could see (the status, a log, an answer) with a hang guard of ten times
the figure that is expected. Nothing here reaches into llmgw: it is driven by its commands and its files alone.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import openai

BIN = Path(sys.executable).parent
POLL_SECONDS = 0.05


class HungError(AssertionError):
    """A wait ran into its hang guard; says what was awaited and what was seen last."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(what: str, seconds: float, condition: Callable[[], Any]) -> Any:
    """The first true value of `condition()`; `HungError` after `seconds`, with its last value."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise HungError(f"waited {seconds:g} s for {what}; last seen: {value!r}")
        time.sleep(POLL_SECONDS)


def alive(pid: int) -> bool:
    """Whether the process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def get_json(url: str) -> Any:
    """The JSON that `url` answers, whatever the status; None while nobody listens."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return None


@attrs.define
class Daemon:
    """One process of ours, and where its output goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        self.process.kill()
        self.process.wait()

    def stop(self, seconds: float = 60) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=seconds)

    def events(self, event: str) -> list[dict[str, Any]]:
        """The lines of its JSON log with that event, oldest first."""
        lines = []
        for line in self.log.read_text(errors="replace").splitlines():
            if not line.startswith("{"):
                continue
            record = json.loads(line)
            if record.get("event") == event:
                lines.append(record)
        return lines


@attrs.define
class Cluster:
    """Control, agents and routers that share one folder."""

    folder: Path
    models_dir: Path
    models: str = ""
    """`[[models]]` tables, as TOML."""
    control_settings: str = 'heartbeat = "500ms"'
    """Lines under `[control]`."""
    top: str = ""
    """Further top-level TOML of cluster.toml."""
    node_settings: str = ""
    """Lines of every node.toml; NODE stands for the node's name."""
    agent_port: int = attrs.field(factory=free_port)
    admin_port: int = attrs.field(factory=free_port)
    router_port: int = attrs.field(factory=free_port)
    environ: dict[str, str] = attrs.field(factory=dict)
    daemons: list[Daemon] = attrs.field(factory=list)
    engine_ports: int = 0

    # --- files ---

    @property
    def cluster_toml(self) -> Path:
        return self.folder / "cluster.toml"

    def write_cluster(self) -> None:
        """cluster.toml as the attributes say."""
        self.cluster_toml.write_text(
            f"""state_dir = "control"
[control]
listen = "127.0.0.1:{self.agent_port}"
{self.control_settings}
[admin]
listen = "127.0.0.1:{self.admin_port}"
[router]
listen = "127.0.0.1:{self.router_port}"
control = "127.0.0.1:{self.agent_port}"
{self.top}
{self.models}
"""
        )

    def write_node(self, node: str) -> Path:
        """The node.toml of that node; each node has ten ports of its own."""
        path = self.folder / f"{node}.toml"
        if not path.exists():
            first = self._ten_free_ports()
            path.write_text(
                f"""node_id = "{node}"
control = "127.0.0.1:{self.agent_port}"
state_dir = "{node}"
models_dir = "{self.models_dir}"
ports = "{first}-{first + 9}"
{self.node_settings.replace("NODE", node)}
"""
            )
        return path

    def _ten_free_ports(self) -> int:
        # Below the ephemeral range, so that no outgoing connection takes one between this test and its use.
        first = 21000 + os.getpid() % 500 * 20 + self.engine_ports
        self.engine_ports += 10
        return first

    # --- processes ---

    def start(self, name: str, *arguments: str, environ: Mapping[str, str] | None = None) -> Daemon:
        """Start a command of ours in a session of its own, its output appended to `<name>.log`."""
        log = self.folder / f"{name}.log"
        environment = {**os.environ, **self.environ, **(environ or {})}
        with log.open("ab") as output:
            process = subprocess.Popen(
                [str(BIN / arguments[0]), *arguments[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env=environment,
                cwd=self.folder,
            )
        daemon = Daemon(name, process, log)
        self.daemons.append(daemon)
        return daemon

    def control(self) -> Daemon:
        """Start control; returns once its admin port answers."""
        self.write_cluster()
        daemon = self.start("control", "llmgw-control", str(self.cluster_toml))
        wait_until("control's admin port", 50, lambda: self._up(daemon))
        return daemon

    def _up(self, daemon: Daemon) -> bool:
        assert daemon.process.poll() is None, f"{daemon.name} ended:\n{daemon.log.read_text()[-3000:]}"
        return self.status() is not None

    def agent(self, node: str, environ: Mapping[str, str] | None = None) -> Daemon:
        """Start an agent; does not wait."""
        return self.start(node, "llmgw-agent", str(self.write_node(node)), environ=environ)

    def router(self) -> tuple[Daemon, int]:
        """Start a router of its own; its process and port, once it answers."""
        port = free_port()
        environ = {"LLMGW_ROUTER__LISTEN": f"127.0.0.1:{port}", "LLMGW_STATE_DIR": str(self.folder / "router")}
        daemon = self.start("router", "llmgw-router", str(self.cluster_toml), environ=environ)
        wait_until("the router to have control's table", 50, lambda: self._follows(port))
        return daemon, port

    def _follows(self, port: int) -> bool:
        routers = (self.status() or {"routers": []})["routers"]
        return any(router["id"].endswith(f":{port}") and router["revision"] for router in routers)

    # --- what a user sees ---

    def status(self) -> Any:
        """`GET /api/v1/status`, or None while control does not answer."""
        return get_json(f"http://127.0.0.1:{self.admin_port}/api/v1/status")

    def node(self, node: str) -> dict[str, Any]:
        """A node of the status; empty while it is not listed."""
        status = self.status() or {"nodes": []}
        return next((entry for entry in status["nodes"] if entry["id"] == node), {})

    def model(self, name: str) -> dict[str, Any]:
        """A model of the status; empty while control does not answer."""
        status = self.status() or {"models": []}
        return next((entry for entry in status["models"] if entry["name"] == name), {})

    def shards(self, name: str) -> list[dict[str, Any]]:
        """Every shard of a model."""
        return [shard for replica in self.model(name).get("replicas", []) for shard in replica["shards"]]

    def ready(self, name: str, count: int = 1, seconds: float = 100) -> list[dict[str, Any]]:
        """Wait until `count` replicas are ready; the ready shards, sorted by id."""

        def look() -> list[dict[str, Any]]:
            shards = [shard for shard in self.shards(name) if shard["state"] == "ready"]
            return shards if len(shards) == count and self.model(name).get("ready") == count else []

        try:
            shards: list[dict[str, Any]] = wait_until(f"{count} ready replica(s) of {name}", seconds, look)
        except HungError as hung:
            raise HungError(f"{hung}\n{json.dumps(self.status(), indent=1)}\n{self.tails()}") from None
        return sorted(shards, key=lambda shard: str(shard["id"]))

    def tails(self) -> str:
        """The end of every log, for a failed wait."""
        return "\n".join(f"--- {daemon.name}\n{daemon.log.read_text()[-2500:]}" for daemon in self.daemons)

    def client(self, port: int | None = None, key: str = "none") -> openai.OpenAI:
        """The official client, without retries of its own."""
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{port or self.router_port}/v1", api_key=key, max_retries=0, timeout=300
        )

    def close(self) -> None:
        """Stop every process: agents with their engines first, so that none is left."""
        pids = [shard["pid"] for node in (self.status() or {"nodes": []})["nodes"] for shard in self._node_pids(node)]
        for daemon in self.daemons:
            if daemon.process.poll() is None:
                daemon.kill()
        for path in sorted(self.folder.glob("*.toml")):
            if path != self.cluster_toml:
                self._end_engines(path.stem)
        left = [pid for pid in pids if alive(pid)]
        for shim in self.shims():
            # Without control nobody acknowledges an engine's end, and its shim waits to tell it.
            os.kill(shim, signal.SIGKILL)
        assert not left, f"engines left behind: {left}"

    def shims(self) -> list[int]:
        """Pids of the shims that were started by agents of this cluster."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                command = path.read_bytes()
            except OSError:
                continue
            if b"/shim.py" in command and os.fsencode(self.folder) + b"/" in command:
                found.append(int(path.parent.name))
        return found

    def _node_pids(self, node: dict[str, Any]) -> list[dict[str, Any]]:
        status = self.status() or {"models": []}
        return [
            shard
            for model in status["models"]
            for replica in model["replicas"]
            for shard in replica["shards"]
            if shard["node"] == node["id"] and shard.get("pid") and not shard["gone"]
        ]

    def _log_events(self, name: str, event: str) -> list[dict[str, Any]]:
        return next((daemon.events(event) for daemon in self.daemons if daemon.name == name), [])

    def _end_engines(self, node: str) -> None:
        # An agent that may stop its engines, told to end at once: the way a user would clean a node.
        folder = self.folder / node
        if not folder.exists():
            return
        before = len(self._log_events(node, "agent started"))
        agent = self.agent(node, environ={"LLMGW_STOP_ENGINES_ON_EXIT": "true"})
        wait_until(f"{node} to start for the clean-up", 50, lambda: len(agent.events("agent started")) > before)
        agent.stop()


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, and the end of everything that it started."""
    try:
        yield cluster
    finally:
        cluster.close()
