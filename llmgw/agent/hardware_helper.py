"""The process that talks to the GPU driver, so that the agent does not have to: NVML calls can hang for ever.

One line of JSON in (`{"id": 1}`), one line out: `{"id": 1, "driver": "550.54", "gpus": [...], "lost": [...]}`, or
`{"id": 1, "error": "...", "absent": false}` where NVML as a whole did not work (`absent`: there is no such library).
Each GPU is `{"uuid", "name", "index", "pci", "memory_total_bytes", "memory_used_bytes"}`, each lost one
`{"index", "error"}`. It initialises NVML at the first question and ends when its standard input does, also while a
call hangs. After an error it is of no further use: a fresh process loads the library anew, which is what a driver
that was upgraded meanwhile needs.

Only the standard library and py3nvml: it lives as long as the agent does.
"""

import json
import os
import queue
import sys
import threading
from typing import Any, BinaryIO

NOT_AVAILABLE = 2**64 - 1
"""What NVML writes where it has no number."""

INT_MAX = 2**63 - 1


def read(nvml: Any) -> dict[str, Any]:
    """Everything about the GPUs at this moment. A GPU that does not answer is in `lost` and spoils no other."""
    gpus, lost = [], []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpus.append(_gpu(nvml, index))
        except nvml.NVMLError as error:
            lost.append({"index": index, "error": str(error)})
    return {"driver": _text(nvml.nvmlSystemGetDriverVersion()), "gpus": gpus, "lost": lost}


def _gpu(nvml: Any, index: int) -> dict[str, Any]:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = _text(nvml.nvmlDeviceGetUUID(handle))
    memory = _optional(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    pci = _optional(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return {
        "uuid": uuid,
        "name": _text(_optional(nvml, nvml.nvmlDeviceGetName, handle)),
        "index": index,
        "pci": _text(getattr(pci, "busId", "")),
        "memory_total_bytes": _number(getattr(memory, "total", None)),
        "memory_used_bytes": _number(getattr(memory, "used", None)),
    }


def _optional(nvml: Any, call: Any, handle: Any) -> Any:
    """What a GPU may be without and still be used; None: the driver does not say."""
    try:
        return call(handle)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
            raise
        return None


def _text(value: Any) -> str:
    """Bindings give str, bytes, and bytes that are no text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value <= INT_MAX and value != NOT_AVAILABLE else None


def answer(nvml: Any, *, initialised: bool) -> dict[str, Any]:
    """The answer to one question, its id apart."""
    try:
        if not initialised:
            nvml.nvmlInit()
        return read(nvml)
    except nvml.NVMLError as error:
        absent = error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return {"error": str(error), "absent": absent}


def serve(questions: "queue.SimpleQueue[bytes]", out: BinaryIO, nvml: Any) -> None:
    """Answer until NVML fails."""
    initialised = False
    while True:
        question = json.loads(questions.get())
        reply = answer(nvml, initialised=initialised)
        out.write(json.dumps({"id": question["id"], **reply}).encode() + b"\n")
        out.flush()
        if "error" in reply:
            return
        initialised = True


def _receive(source: BinaryIO, questions: "queue.SimpleQueue[bytes]") -> None:
    for line in source:
        questions.put(line)
    os._exit(0)  # the agent has ended; the other thread may hang in a call for ever


def main() -> None:
    """Serve standard input and output."""
    from py3nvml import py3nvml as nvml  # noqa: PLC0415  so that the functions above can be had without it

    questions: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, questions), daemon=True).start()
    serve(questions, sys.stdout.buffer, nvml)
    os._exit(0)  # a thread that waits for a line cannot be ended in any other way


if __name__ == "__main__":
    main()
