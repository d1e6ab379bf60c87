"""The launcher as a process of its own, over the real engine. Waits are for events, with a guard against hanging."""

import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("xllamacpp", reason="the extra llamacpp is not installed")

from llmgw.demo.tiny_model import Shape, write_tiny_model

HANG_SECONDS = 30
"""Ten times what the slowest wait here takes on a busy machine."""


class Server:
    """A running launcher and what it has printed."""

    def __init__(self, process: trio.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.output = ""
        self.printed = trio.Event()
        """Set, and replaced, whenever something was printed."""

    async def read_output(self) -> None:
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self.output += data.decode()
            printed, self.printed = self.printed, trio.Event()
            printed.set()

    async def wait_output(self, words: str) -> None:
        while words not in self.output:
            await self.printed.wait()

    async def open_request(self, method: str, path: str, body: Any = None, key: str = "") -> trio.SocketStream:
        """A connection on which the request was sent."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.port)
        content = b"" if body is None else json.dumps(body).encode()
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}"
        await stream.send_all(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return stream

    async def ask(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, bytes]:
        """Status and body of an answer that is not chunked."""
        async with await self.open_request(method, path, body, key) as stream:
            answer = b"".join([data async for data in stream])
        head, _, content = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), content

    async def wait_ready(self) -> list[int]:
        """Ask for /health until it is 200; the statuses before."""
        statuses: list[int] = []
        while True:
            try:
                status, _ = await self.ask("GET", "/health")
            except OSError:
                status = 0
            if status == 200:
                return statuses
            assert self.process.poll() is None, self.output
            statuses.append(status)
            await trio.sleep(0.02)


Start = Callable[..., AbstractAsyncContextManager[Server]]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    write_tiny_model(path, Shape())
    return path


@pytest.fixture(scope="session")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Loads for about a second, and answers at about 80 tokens a second."""
    path = tmp_path_factory.mktemp("models") / "slow.gguf"
    write_tiny_model(path, Shape(layers=256, hidden=32, context=2048))
    return path


@pytest.fixture
def start() -> Start:
    @asynccontextmanager
    async def started(*arguments: str, environ: dict[str, str] | None = None) -> AsyncIterator[Server]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-P", "-m", "llmgw.launchers.llamacpp", "--port", str(port), *arguments]
        with trio.fail_after(HANG_SECONDS):
            async with trio.open_nursery() as nursery:
                environment = {"PATH": os.environ["PATH"], **(environ or {})}
                process = await trio.lowlevel.open_process(command, stderr=-1, env=environment)
                server = Server(process, port)
                nursery.start_soon(server.read_output)
                try:
                    yield server
                finally:
                    if process.poll() is None:
                        process.kill()
                    await process.wait()

    return started


async def test_it_serves_what_the_flags_say(start: Start, tiny: Path) -> None:
    flags = ("--alias", "tiny", "--metrics", "--embeddings", "--pooling", "mean", "-c", "1024", "-t", "1")
    async with start("-m", str(tiny), *flags) as server:
        await server.wait_ready()

        status, body = await server.ask("GET", "/v1/models")
        assert status == 200
        assert [model["id"] for model in json.loads(body)["data"]] == ["tiny"]

        question = {"messages": [{"role": "user", "content": "Grüße, 世界 🎉"}], "max_tokens": 12}
        status, body = await server.ask("POST", "/v1/chat/completions", question)
        answer = json.loads(body)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 12
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"].strip()

        status, body = await server.ask("POST", "/v1/embeddings", {"input": "some words"})
        vector = json.loads(body)["data"][0]["embedding"]
        assert status == 200
        assert len(vector) == 64
        assert sum(number * number for number in vector) == pytest.approx(1, abs=1e-3)

        status, body = await server.ask("GET", "/metrics")
        assert status == 200
        assert b"llamacpp:tokens_predicted_total" in body
        assert (await server.ask("GET", "/slots"))[0] == 200


async def test_the_length_of_an_answer_is_what_was_asked_for(start: Start, tiny: Path) -> None:
    """The tiny model never ends an answer by itself, at a high temperature neither."""
    async with start("-m", str(tiny), "-c", "2048", "-t", "1") as server:
        await server.wait_ready()
        question = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 1500, "temperature": 2, "top_k": 0}
        _, body = await server.ask("POST", "/v1/chat/completions", question)
        answer = json.loads(body)
        assert answer["usage"]["completion_tokens"] == 1500
        assert answer["choices"][0]["finish_reason"] == "length"


async def test_a_key_from_the_environment_is_asked_for(start: Start, tiny: Path) -> None:
    async with start("-m", str(tiny), "-c", "256", environ={"LLAMA_API_KEY": "s3cret"}) as server:
        await server.wait_ready()
        question = {"prompt": "x", "max_tokens": 1}
        assert (await server.ask("POST", "/v1/completions", question))[0] == 401
        assert (await server.ask("POST", "/v1/completions", question, key="s3cret"))[0] == 200


async def test_sigterm_ends_an_idle_one_with_code_0(start: Start, tiny: Path) -> None:
    async with start("-m", str(tiny), "-c", "256") as server:
        await server.wait_ready()
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == 0
    assert "received SIGTERM, leaving http://127.0.0.1:" in server.output


async def test_sigterm_ends_it_at_once_in_the_middle_of_a_stream(start: Start, slow: Path) -> None:
    """The native shutdown would wait 30 s for this client."""
    async with start("-m", str(slow), "-c", "2048", "-t", "1", "--no-warmup") as server:
        statuses = await server.wait_ready()
        assert 503 in statuses, "while it loads it says so"
        question = {"prompt": "x", "max_tokens": 2000, "stream": True}
        async with await server.open_request("POST", "/v1/completions", question) as stream:
            answer = b""
            while b"data: " not in answer:
                answer += await stream.receive_some()
            server.process.send_signal(signal.SIGTERM)
            with trio.fail_after(5):
                assert await server.process.wait() == 0
            with suppress(trio.BrokenResourceError):
                answer += b"".join([data async for data in stream])
        assert b"[DONE]" not in answer


async def test_sigterm_ends_it_at_once_while_it_loads(start: Start, slow: Path) -> None:
    async with start("-m", str(slow), "-c", "2048") as server:
        await server.wait_output("loading model")
        server.process.send_signal(signal.SIGTERM)
        assert await server.process.wait() == -signal.SIGTERM
    assert "model loaded" not in server.output


async def test_a_flag_that_it_does_not_know_ends_it(start: Start, tiny: Path) -> None:
    async with start("-m", str(tiny), "--frobnicate") as server:
        assert await server.process.wait() == 1
    assert server.output == "error: invalid argument: --frobnicate\n"


async def test_a_model_that_is_not_there_ends_it(start: Start, tmp_path: Path) -> None:
    async with start("-m", str(tmp_path / "absent.gguf")) as server:
        assert await server.process.wait() == 1
    assert f"failed to open GGUF file '{tmp_path}/absent.gguf' (No such file or directory)" in server.output
    assert server.output.endswith(
        "error: the server did not start, see above: Failed to init server, please check the input params.\n"
    )


async def test_a_taken_port_ends_it_in_words_that_say_so(start: Start, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        async with start("-m", str(tiny), "--port", str(port)) as server:
            assert await server.process.wait() == 1
    assert server.output.endswith(f"hostname: 127.0.0.1, port: {port}: address already in use\n")


async def test_an_address_of_another_machine_ends_it(start: Start, tiny: Path) -> None:
    async with start("-m", str(tiny), "--host", "192.0.2.1") as server:
        assert await server.process.wait() == 1
    assert "hostname: 192.0.2.1" in server.output
    assert "Cannot assign requested address" in server.output
