"""A status that has one of everything, a fake control to ask for it, and snapshots of what is printed."""

import os
import socketserver
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import attrs
import pytest

from llmgw.core import statusdoc as doc
from llmgw.core.explain import Explanation, Reason

GIB = 2**30
GPU_A = "GPU-ab12cd34-1111-2222-3333-444455556666"
GPU_B = "GPU-cd34ef56-1111-2222-3333-444455556666"


@pytest.fixture
def status() -> doc.Status:
    """Recovering, with nodes, GPUs, models and routers in every condition that has a rendering of its own."""
    nodes = (
        doc.NodeStatus(
            "gpu-a",
            "healthy",
            address="10.0.0.5",
            last_heard_s=0.4,
            gpus=(
                doc.GpuStatus(GPU_A, "NVIDIA H100 80GB HBM3", 80 * GIB, int(31.2 * GIB), shards=("llama-70b/0/0",)),
                doc.GpuStatus(GPU_B, "NVIDIA H100 80GB HBM3", 80 * GIB, None, problems=("uncorrectable ECC errors",)),
            ),
            labels={"zone": "a", "rack": "r17"},
            since_s=3000.0,
            cpus=96,
            memory_total_bytes=1024 * GIB,
            gpu_memory_age_s=1.2,
        ),
        doc.NodeStatus(
            "gpu-b",
            "unreachable",
            ("cordoned",),
            "10.0.0.6",
            12.3,
            reason="nothing heard for 12s (3 heartbeats missed)",
            since_s=5.0,
            problems=("disk_full: 0.4 GiB free under models_dir",),
        ),
        doc.NodeStatus("gpu-c", "incompatible", reason="speaks protocol 2.0, this control speaks 1.0"),
    )
    running = doc.ReplicaStatus(
        "llama-70b/0",
        "ready",
        shards=(
            doc.ShardStatus(
                "llama-70b/0/0", "gpu-a", "ready", False, 1764540000, 20000, 4711, gpus=(GPU_A,), since_s=1000.0
            ),
        ),
    )
    failed = doc.ReplicaStatus(
        "llama-70b/1",
        "backing off",
        "failed: the engine was ended by SIGKILL; tried again in 8s",
        shards=(
            doc.ShardStatus(
                "llama-70b/1/0",
                "gpu-a",
                "failed",
                True,
                1764540001,
                20001,
                None,
                "the engine was ended by SIGKILL",
                (GPU_B,),
                3.0,
                "signalled",
                None,
                9,
                "loading model\n\nCUDA \x1b[31mout\x1b[0m of memory\n",
            ),
        ),
    )
    wide = doc.ReplicaStatus(
        "deepseek/0",
        "loading",
        outdated=True,
        shards=tuple(
            doc.ShardStatus(
                f"deepseek/0/{rank}", f"gpu-{rank}", state, epoch=7, port=20002, pid=5000 + rank, since_s=65
            )
            for rank, state in enumerate(("ready", "loading"))
        ),
    )
    models = (
        doc.ModelStatus(
            "llama-70b",
            ("gpt-4o-mini", "gpt-4"),
            3,
            1,
            (running, failed, doc.ReplicaStatus("llama-70b/2", "pending", "no node fits")),
            Explanation(
                "llama-70b/2 is pending: no node fits",
                (
                    Reason("gpu_memory", ("gpu-a",), "needs 40 GiB, most free 31.2 GiB on GPU-ab12cd34"),
                    Reason("state", ("gpu-b", "gpu-c"), "not healthy"),
                ),
                "gpu_memory = 31GiB would fit on gpu-a",
            ),
            (doc.EndpointStatus("llama-70b/0", "http://10.0.0.5:20000", "ready"),),
        ),
        doc.ModelStatus("deepseek", desired=1, replicas=(wide,)),
        doc.ModelStatus(
            "legacy",
            endpoints=(
                doc.EndpointStatus("legacy@http://[::1]:9000", "http://[::1]:9000", "suspect", "no answer for 4s"),
            ),
        ),
    )
    return doc.Status(
        doc.ControlStatus(
            "0.1.0",
            "recovering",
            100.0,
            3,
            2,
            "2 of 3 known nodes are synced: nothing is stopped until gpu-b is back or 3m20s are over",
            "c0ffee",
            7,
        ),
        nodes,
        (
            doc.RouterStatus("worker-0", 7, 0.3, True, 3, "0.1.0", "a worker of this control"),
            doc.RouterStatus("edge-1", 6, 2.3, False, 12, "0.1.0", "10.0.0.9:51234"),
        ),
        models,
    )


@pytest.fixture
def snapshot(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`snapshot(name, text)` fails unless `text` is what snapshots/name.txt holds; REWRITE_SNAPSHOTS=1 writes it."""

    def check(name: str, text: str) -> None:
        file = Path(request.path).parent / "snapshots" / f"{name}.txt"
        if os.environ.get("REWRITE_SNAPSHOTS"):
            file.write_text(text)
        assert text == file.read_text()

    return check


@attrs.define
class FakeControl:
    """What the fake admin server answers to every GET, and what it was asked."""

    url: str
    code: int = 200
    body: bytes = b"{}"
    paths: list[str] = attrs.field(factory=list)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    fake: FakeControl


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, _Server)
        fake = self.server.fake
        fake.paths.append(self.path)
        self.send_response(fake.code)
        self.send_header("Content-Length", str(len(fake.body)))
        self.end_headers()
        self.wfile.write(fake.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def fake_control() -> Iterator[FakeControl]:
    """A server on a loopback port that answers as it is told."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.fake = FakeControl(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, args=(0.005,))
        thread.start()
        yield server.fake
        server.shutdown()
        thread.join()
