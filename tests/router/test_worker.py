"""A worker as a process: it serves what its parent brings, keeps it on disk, and ends when its parent does."""

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from llmgw.config.schema import Log, Router
from llmgw.core.address import Address
from llmgw.core.routing import RoutedModel
from llmgw.net.listening import bind
from llmgw.net.worker_settings import WorkerSettings, worker_command
from llmgw.router.kept import FILE_NAME
from llmgw.wire.messages import Follow, Goodbye, RouterReport, RouteTable
from llmgw.wire.session import ControlSession

HANG_GUARD_SECONDS = 60


@attrs.define
class Worker:
    process: "subprocess.Popen[bytes]"
    parent: socket.socket
    session: ControlSession
    port: int

    def receive(self, kind: type) -> object:
        """The next message of that kind."""
        while True:
            data = self.parent.recv(65536)
            assert data, "the worker ended"
            for message in self.session.receive(data):
                if isinstance(message, kind):
                    return message

    def models(self) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_GUARD_SECONDS)
        connection.request("GET", "/v1/models")
        listed = [entry["id"] for entry in json.loads(connection.getresponse().read())["data"]]
        connection.close()
        return listed


@contextmanager
def started(folder: Path) -> Iterator[Worker]:
    parent, child = socket.socketpair()
    parent.settimeout(HANG_GUARD_SECONDS)
    with bind(Address("127.0.0.1", 0)) as listener, parent:
        port = listener.getsockname()[1]
        settings = WorkerSettings(str(folder), Router(listen=Address("127.0.0.1", port)), Log())
        fds = (child.fileno(), listener.fileno())
        with child:
            process = subprocess.Popen(
                worker_command(settings, 0, *fds), pass_fds=fds, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
        with process:
            yield Worker(process, parent, ControlSession(), port)
            if process.poll() is None:
                process.kill()


def bring(worker: Worker, table: RouteTable) -> None:
    assert isinstance(worker.receive(Follow), Follow)
    worker.parent.sendall(worker.session.send(table))


@pytest.mark.parametrize("how", ["closed", "signal"])
def test_it_serves_keeps_and_ends_in_order(tmp_path: Path, how: str) -> None:
    """The table of its parent is served and written down; the parent's end or SIGTERM is exit code 0."""
    with started(tmp_path) as worker:
        bring(worker, RouteTable("c", 4, models=(RoutedModel("tiny"),)))
        assert worker.models() == ["tiny"]
        report = worker.receive(RouterReport)
        assert isinstance(report, RouterReport)
        assert (report.incarnation, report.revision) == ("c", 4)
        if how == "signal":
            worker.process.send_signal(signal.SIGTERM)
            assert isinstance(worker.receive(Goodbye), Goodbye)
        else:
            worker.parent.close()
        assert worker.process.wait(HANG_GUARD_SECONDS) == 0
        assert worker.process.stderr is not None
        assert b"Traceback" not in worker.process.stderr.read()
    assert (tmp_path / FILE_NAME).exists()

    # and a successor whose parent knows nothing yet serves the kept table, and says that nobody has confirmed it
    with started(tmp_path) as worker:
        follow = worker.receive(Follow)
        assert isinstance(follow, Follow)
        assert (follow.incarnation_held, follow.revision_held) == ("c", 4)
        assert worker.models() == ["tiny"]
        worker.parent.close()
        assert worker.process.wait(HANG_GUARD_SECONDS) == 0
