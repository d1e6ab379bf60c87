"""The machine that a shim is: engine, output and clients, and the phase they are in.

The theory of operation, the files and the protocol are in `llmgw.agent.shim`. Standard library only, and frozen.
"""

import binascii
import contextlib
import fcntl
import math
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from llmgw.agent.procfs import descendants, read_boot_id, read_stat, send_signal
from llmgw.agent.shim_engine import become_engine, port_taken, read_oom_kills
from llmgw.agent.shim_files import EXIT, RECORD, SOCKET, Output, read_tail, write_json
from llmgw.agent.shim_protocol import (
    PROTOCOL,
    READ_BYTES,
    Client,
    Json,
    RefusedError,
    bytes_argument,
    is_whole,
    read_command,
    signal_argument,
    stop_arguments,
)

PIPE_BYTES = 1 << 20
"""The most that an unprivileged user may ask for: what an engine can print while the disk is slow."""
CLIENTS_MAX = 32
"""An agent has one attached and one for a command; the rest is people and leftovers."""
SECOND_TERM_SECONDS = 2.0
"""Engines that hang on the first SIGTERM end within milliseconds of the second."""
KILL_AGAIN_SECONDS = 1.0
"""While descendants are dying: each death has us look again at once, this is for one that will not die."""
WRITE_AGAIN_SECONDS = 10.0
"""A record that found the disk full."""
UNTOLD_SECONDS = 10.0
"""How long it waits, once all are gone, for a client to tell it; after that the exit record says it all."""
UNSAVED_SECONDS = 3600.0
"""The same while that record finds no room on the disk."""
HANDLED = (signal.SIGCHLD, signal.SIGTERM)


class Shim:
    """Engine, output and clients, and the phase they are in."""

    def __init__(self, folder: int, request: Json) -> None:
        self.folder = folder
        self.request = request
        self.output = Output(folder)
        self.phase = "launching"
        self.engine = 0
        """Its pid until it is reaped: after that the number may be anybody's."""
        self.engine_output = self.exec_errors = -1
        self.stop_requested = self.kill_sent = self.told_gone = self.ending = self.done = False
        self.term_at = self.kill_at = self.write_at = self.end_at = math.inf
        self.oom_kills_before: int | None = None
        self.launch_error = ""
        self.exit: Json | None = None
        self.unsaved: dict[str, Json] = {}
        self.clients: list[Client] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.wake, self.wake_write = os.pipe()
        me = read_stat(os.getpid())
        assert me is not None
        self.record: Json = {
            "v": PROTOCOL,
            **{field: request[field] for field in ("mark", "agent", "state_dir", "shard", "epoch", "ports")},
            "argv0": request["argv"][0],
            "boot_id": read_boot_id(),
            "shim_pid": me.pid,
            "shim_start_time": me.start_time,
            "engine_pid": None,
            "engine_start_time": None,
            "ports_free": None,
            "created_unix": time.time(),
        }

    def open(self) -> None:
        """Record and socket: from here on an agent finds us. OSError: nothing was launched."""
        write_json(self.folder, RECORD, self.record)
        self.listener.bind(f"/proc/self/fd/{self.folder}/{SOCKET}")
        self.listener.listen(CLIENTS_MAX)
        self.listener.setblocking(False)
        os.set_blocking(self.wake, False)
        os.set_blocking(self.wake_write, False)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in HANDLED:
            signal.signal(number, lambda *_: None)  # which ones came is read from the pipe
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def launch(self, oom_score: int, umask: int) -> None:
        """Fork the engine, or end at once where that cannot be."""
        for port in self.request["ports"]:
            if port_taken(port):
                self.end(port_taken=port)
                return
        self.record["ports_free"] = True if self.request["ports"] else None
        if self.request["cgroup"]:
            self.oom_kills_before = read_oom_kills(self.request["cgroup"])
        self.engine_output, output_write = os.pipe()
        self.exec_errors, errors_write = os.pipe()
        os.set_blocking(self.engine_output, False)
        os.set_blocking(self.exec_errors, False)
        with contextlib.suppress(OSError):  # the user's pipes have used up their allowance: the usual size does
            fcntl.fcntl(output_write, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        # Blocked over the fork: one that reached the child before exec would be taken for the shim's own.
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
        try:
            self.engine = os.fork()
            if not self.engine:
                become_engine(self.request, output_write, errors_write, oom_score, umask)
            self.set_group()
        except OSError as error:  # no more processes allowed
            os.close(self.exec_errors)
            self.exec_errors = -1
            self.end(launch_error=f"cannot fork: {error.strerror}")
            return
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
            os.close(output_write)
            os.close(errors_write)
        stat = read_stat(self.engine)
        self.record.update(engine_pid=self.engine, engine_start_time=stat.start_time if stat else None)
        self.save(RECORD, self.record)

    def set_group(self) -> None:
        """The child does it too; whoever comes first, a signal to the group cannot come before."""
        with contextlib.suppress(OSError):  # it has, and is executed already
            os.setpgid(self.engine, self.engine)

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while not self.done:
            ready = self.wait()
            if self.wake in ready and signal.SIGTERM in os.read(self.wake, READ_BYTES):
                self.ending = True
                self.stop(self.request["grace_seconds"], self.request["second_term"])
            if self.exec_errors in ready:
                self.read_exec_errors()
            if self.engine_output in ready:
                self.read_output(READ_BYTES)
            if self.wake in ready:
                self.reap()
            if self.listener.fileno() in ready:
                self.accept()
            for client in [client for client in self.clients if client.sock.fileno() in ready]:
                client.flush()
                for line in client.lines():
                    if not client.closing:
                        client.send(self.answer(client, line))
            self.drop_clients()
            self.keep_time()
        with contextlib.suppress(OSError):
            os.unlink(SOCKET, dir_fd=self.folder)

    def wait(self) -> set[int]:
        """The descriptors that are ready, or none when a time has come."""
        poll = select.poll()
        for fd in (self.wake, self.listener.fileno(), self.engine_output, self.exec_errors):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        for client in self.clients:
            poll.register(client.sock, client.waits_for)
        due = min(self.term_at, self.kill_at, self.write_at, self.end_at)
        if self.phase != "gone" and (self.phase == "exited" or self.kill_sent):
            due = min(due, time.monotonic() + KILL_AGAIN_SECONDS)
        timeout = None if due == math.inf else max(0.0, due - time.monotonic()) * 1000 + 1
        return {fd for fd, _ in poll.poll(timeout)}

    def keep_time(self) -> None:
        now = time.monotonic()
        if now >= self.term_at:
            self.term_at = math.inf
            self.signal_engine(signal.SIGTERM)
        if now >= self.kill_at:
            self.kill_at = math.inf
            self.kill_sent = True
        if self.kill_sent or self.phase == "exited":
            self.kill_descendants()
        if now >= self.write_at:
            self.write_unsaved()
        if self.phase == "gone":
            self.end_at = self.when_to_end(now)
            self.done = self.done or self.ending or now >= self.end_at

    def when_to_end(self, now: float) -> float:
        """By itself, once there is nobody to talk to and nothing that only this process knows."""
        if self.clients:
            return math.inf
        if self.unsaved:
            return min(self.end_at, now + UNSAVED_SECONDS)
        return min(self.end_at, now if self.told_gone else now + UNTOLD_SECONDS)

    # --- the engine ------------------------------------------------------------------------------------------------

    def read_exec_errors(self) -> None:
        """What kept the child from executing. Nothing and an end: it was executed."""
        if self.exec_errors < 0:
            return
        try:
            error = os.read(self.exec_errors, READ_BYTES).decode(errors="replace")
        except BlockingIOError:
            return
        os.close(self.exec_errors)
        self.exec_errors = -1
        if not error:
            self.phase = "running"
            self.tell("started", engine_pid=self.engine, ports_free=self.record["ports_free"])
        self.launch_error = error

    def read_output(self, bytes_max: int) -> None:
        """Keep what has been printed, no more than that at a time."""
        while self.engine_output >= 0 and bytes_max > 0:
            try:
                data = os.read(self.engine_output, READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                os.close(self.engine_output)
                self.engine_output = -1
                return
            self.output.write(data)
            bytes_max -= len(data)

    def reap(self) -> None:
        """Every child that has ended, ours or handed to us by its parent's death; the engine is told by its pid."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                if self.phase == "exited":
                    self.set_gone()
                return
            if not pid:
                return
            if pid == self.engine:
                self.read_exec_errors()
                self.read_output(PIPE_BYTES)
                code = os.waitstatus_to_exitcode(status)
                self.engine = 0
                if self.launch_error:
                    self.end(launch_error=self.launch_error)
                else:
                    self.end(code=code if code >= 0 else None, signal=-code if code < 0 else None)

    def end(
        self,
        code: int | None = None,
        signal: int | None = None,
        launch_error: str = "",
        port_taken: int | None = None,
    ) -> None:
        """The engine's own process is no more, or never was: the exit record."""
        kills = read_oom_kills(self.request["cgroup"]) if self.request["cgroup"] else None
        known = kills is not None and self.oom_kills_before is not None
        self.exit = {
            "v": PROTOCOL,
            "code": code,
            "signal": signal,
            "launch_error": launch_error,
            "port_taken": port_taken,
            "stop_requested": self.stop_requested,
            "kill_sent": self.kill_sent,
            "oom_kills": (kills or 0) - (self.oom_kills_before or 0) if known else None,
            "dropped_bytes": self.output.dropped_bytes,
            "ended_unix": time.time(),
            "ended_boottime_seconds": time.clock_gettime(time.CLOCK_BOOTTIME),
            "gone": False,
        }
        self.phase = "exited"
        self.term_at = self.kill_at = math.inf
        self.save(EXIT, self.exit)
        self.tell("exited", exit=self.exit)
        self.kill_descendants()
        self.reap()

    def set_gone(self) -> None:
        assert self.exit is not None
        self.read_output(PIPE_BYTES)
        self.phase = "gone"
        self.exit.update(gone=True, dropped_bytes=self.output.dropped_bytes)
        self.save(EXIT, self.exit)
        self.tell("gone")

    def stop(self, grace_seconds: float, second_term: bool) -> None:
        """Begin to stop, or bring the end nearer."""
        if not self.engine:
            return
        if not self.stop_requested:
            self.stop_requested = True
            self.signal_engine(signal.SIGTERM)
        term_at = time.monotonic() + grace_seconds
        kill_at = term_at + (SECOND_TERM_SECONDS if second_term else 0.0)
        if kill_at < self.kill_at:
            self.kill_at = kill_at
            self.term_at = term_at if second_term else math.inf

    def signal_engine(self, number: int) -> None:
        """Its whole process group. Not reaped yet, so that the number is still its own."""
        with contextlib.suppress(PermissionError):  # it has become another user; its end is awaited all the same
            os.killpg(self.engine, number)

    def kill_descendants(self) -> None:
        """SIGKILL to every one, also in a session of its own. Who is forked meanwhile is found the next time."""
        for stat in descendants(os.getpid()):
            with contextlib.suppress(PermissionError):  # as above
                send_signal(stat, signal.SIGKILL)

    # --- files and clients -----------------------------------------------------------------------------------------

    def save(self, name: str, value: Json) -> None:
        self.unsaved[name] = value
        self.write_unsaved()

    def write_unsaved(self) -> None:
        self.write_at = math.inf
        for name, value in list(self.unsaved.items()):
            try:
                write_json(self.folder, name, value)
                del self.unsaved[name]
            except OSError:
                self.write_at = time.monotonic() + WRITE_AGAIN_SECONDS

    def tell(self, event: str, **fields: Any) -> None:
        for client in self.clients:
            if client.attached:
                client.send({"event": event, **fields})
                self.told_gone |= event == "gone"

    def accept(self) -> None:
        try:
            client = Client(self.listener.accept()[0])
        except OSError:
            return  # gone again, or no descriptors left
        self.clients.append(client)
        if len(self.clients) > CLIENTS_MAX:
            client.send({"id": None, "error": f"there are {CLIENTS_MAX} clients already"})
            client.closing = True

    def drop_clients(self) -> None:
        for client in [client for client in self.clients if client.closing and not client.pending]:
            client.sock.close()
            self.clients.remove(client)

    def answer(self, client: Client, line: bytes) -> Json:
        """The reply to one line, whatever is in it."""
        command: Json = {}
        try:
            command = read_command(line)
            return {"id": command.get("id"), "ok": self.carry_out(client, command)}
        except RefusedError as error:
            return {"id": command.get("id"), "error": str(error)}

    def carry_out(self, client: Client, command: Json) -> Json:
        name = command.get("command")
        if not is_whole(command.get("v")):
            raise RefusedError("v: expected an integer")
        if not isinstance(name, str) or name not in COMMANDS:
            raise RefusedError(f"expected a command of {', '.join(COMMANDS)}")
        return COMMANDS[name](self, client, command)

    def hello(self, _client: Client, _command: Json) -> Json:
        return {**self.record, "commands": list(COMMANDS)}

    def state(self, _client: Client, _command: Json) -> Json:
        return {
            "phase": self.phase,
            "engine_pid": self.record["engine_pid"],
            "ports_free": self.record["ports_free"],
            "stop_requested": self.stop_requested,
            "dropped_bytes": self.output.dropped_bytes,
            "unsaved": list(self.unsaved),
            "exit": self.exit,
        }

    def attach(self, client: Client, command: Json) -> Json:
        client.attached = True
        self.told_gone |= self.phase == "gone"
        return self.state(client, command)

    def tail(self, _client: Client, command: Json) -> Json:
        size = bytes_argument(command)
        try:
            data = read_tail(self.folder, size)
        except OSError as error:
            raise RefusedError(f"the output cannot be read: {error.strerror}") from error
        return {"data": binascii.b2a_base64(data, newline=False).decode()}

    def order_stop(self, _client: Client, command: Json) -> Json:
        self.stop(*stop_arguments(command))
        return {}

    def order_signal(self, _client: Client, command: Json) -> Json:
        number = signal_argument(command)
        if not self.engine:
            raise RefusedError("the engine has ended")
        self.signal_engine(number)
        return {}

    def forget(self, _client: Client, _command: Json) -> Json:
        if self.phase != "gone":
            raise RefusedError(f"not yet gone: {self.phase}")
        self.done = True
        return {}


COMMANDS: dict[str, Callable[[Shim, Client, Json], Json]] = {
    "hello": Shim.hello,
    "state": Shim.state,
    "attach": Shim.attach,
    "output": Shim.tail,
    "stop": Shim.order_stop,
    "signal": Shim.order_signal,
    "forget": Shim.forget,
}
