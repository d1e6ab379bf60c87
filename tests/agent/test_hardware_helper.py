"""The helper's half of the conversation: whatever a binding or a driver gives becomes plain JSON, or a clear error."""

import io
import json
import queue
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from llmgw.agent import hardware_helper

GIB = 1024**3


class NvmlError(Exception):
    def __init__(self, value: int, text: str = "") -> None:
        super().__init__(text)
        self.value = value


class FakeNvml:
    """The functions of the binding that are used, over a script of devices."""

    NVMLError = NvmlError
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_ERROR_NOT_SUPPORTED = 3

    def __init__(self, *devices: dict[str, Any] | NvmlError, init: NvmlError | None = None) -> None:
        self.devices = list(devices)
        self.init = init
        self.inits = 0

    def nvmlInit(self) -> None:  # noqa: N802  the binding's names
        self.inits += 1
        if self.init is not None:
            raise self.init

    def nvmlSystemGetDriverVersion(self) -> bytes:  # noqa: N802
        return b"550.54.15"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:  # noqa: N802
        device = self.devices[index]
        if isinstance(device, NvmlError):
            raise device
        return device

    def _value(self, device: dict[str, Any], name: str) -> Any:
        value = device.get(name)
        if isinstance(value, NvmlError):
            raise value
        return value

    def nvmlDeviceGetUUID(self, device: dict[str, Any]) -> Any:  # noqa: N802
        return self._value(device, "uuid")

    def nvmlDeviceGetName(self, device: dict[str, Any]) -> Any:  # noqa: N802
        return self._value(device, "name")

    def nvmlDeviceGetMemoryInfo(self, device: dict[str, Any]) -> Any:  # noqa: N802
        self._value(device, "memory")
        return SimpleNamespace(total=device.get("total"), used=device.get("used"))

    def nvmlDeviceGetPciInfo(self, device: dict[str, Any]) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._value(device, "pci"))


def device(n: int = 0, **changes: Any) -> dict[str, Any]:
    usual = {
        "uuid": f"GPU-{n}",
        "name": "NVIDIA H100",
        "pci": b"0000:65:00.0",
        "total": 80 * GIB,
        "used": 3 * GIB,
    }
    return usual | changes


def test_a_healthy_node_is_told_whole() -> None:
    assert hardware_helper.answer(FakeNvml(device()), initialised=False) == {
        "driver": "550.54.15",
        "gpus": [
            {
                "uuid": "GPU-0",
                "name": "NVIDIA H100",
                "index": 0,
                "pci": "0000:65:00.0",
                "memory_total_bytes": 80 * GIB,
                "memory_used_bytes": 3 * GIB,
            }
        ],
        "lost": [],
    }


@pytest.mark.parametrize(
    ("changes", "name", "used"),
    [
        ({"name": b"NVIDIA A100"}, "NVIDIA A100", 3 * GIB),
        ({"name": b"\xf8\x95\xd4"}, "\ufffd\ufffd\ufffd", 3 * GIB),
        ({"name": None}, "", 3 * GIB),
        ({"name": NvmlError(3)}, "", 3 * GIB),
        ({"uuid": b"GPU-0"}, "NVIDIA H100", 3 * GIB),
        ({"used": 2**64 - 1}, "NVIDIA H100", None),
        ({"used": None}, "NVIDIA H100", None),
        ({"memory": NvmlError(3)}, "NVIDIA H100", None),
        ({"pci": NvmlError(999)}, "NVIDIA H100", 3 * GIB),
    ],
)
def test_odd_values_become_text_numbers_or_nothing(changes: dict[str, Any], name: str, used: int | None) -> None:
    (gpu,) = hardware_helper.answer(FakeNvml(device(**changes)), initialised=True)["gpus"]
    assert (gpu["uuid"], gpu["name"], gpu["memory_used_bytes"]) == ("GPU-0", name, used)
    json.dumps(gpu)


@pytest.mark.parametrize("broken", [NvmlError(15, "GPU is lost"), device(1, memory=NvmlError(15, "GPU is lost"))])
def test_one_lost_gpu_does_not_spoil_the_others(broken: dict[str, Any] | NvmlError) -> None:
    answer = hardware_helper.answer(FakeNvml(device(0), broken, device(2)), initialised=True)
    assert [gpu["uuid"] for gpu in answer["gpus"]] == ["GPU-0", "GPU-2"]
    assert answer["lost"] == [{"index": 1, "error": "GPU is lost"}]


def test_an_absent_library_is_told_apart_from_a_broken_one() -> None:
    absent = FakeNvml(init=NvmlError(12, "NVML Shared Library Not Found"))
    mismatch = FakeNvml(init=NvmlError(18, "RM has detected an NVML/RM version mismatch."))
    assert hardware_helper.answer(absent, initialised=False)["absent"] is True
    assert hardware_helper.answer(mismatch, initialised=False) == {
        "error": "RM has detected an NVML/RM version mismatch.",
        "absent": False,
    }


def test_questions_are_answered_by_their_ids_until_nvml_fails() -> None:
    nvml = FakeNvml(device())
    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    out = io.BytesIO()
    for number in (1, 2):
        questions.put(b'{"id": %d}\n' % number)

    class Fails(FakeNvml):
        def nvmlDeviceGetCount(self) -> int:  # noqa: N802
            if questions.empty():
                raise NvmlError(999, "Unknown Error")
            return 1

    nvml = Fails(device())
    hardware_helper.serve(questions, out, nvml)
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["id"], len(first["gpus"])) == (1, 1)
    assert second == {"id": 2, "error": "Unknown Error", "absent": False}
    assert nvml.inits == 1


@pytest.mark.parametrize("question", [b"", b'{"id": 1}\n'])
def test_the_process_ends_with_its_standard_input_and_without_a_word(question: bytes) -> None:
    """Also after an answer that NVML is not there, which is what most machines that run this give."""
    with subprocess.Popen(
        [sys.executable, "-I", "-m", "llmgw.agent.hardware_helper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if question:
            process.stdin.write(question)
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 0
        assert errors == b""
