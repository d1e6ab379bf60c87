"""Stands in for `llama-server` on the PATH: dumps its argv, then answers like an engine that is easily pleased.

Environment: FAKE_DUMP, a folder for `argv-<port>.json`; FAKE_SILENT=1 loads for ever: it never listens.
"""

import json
import os
import signal
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Every POST is answered with one token, every GET with one model."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"status": "ok", "data": [{"id": value_of("--alias")}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(
            {
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )

    def _answer(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def value_of(flag: str) -> str:
    """What follows the flag in our argv."""
    return sys.argv[sys.argv.index(flag) + 1]


def main() -> None:
    port = int(value_of("--port"))
    (Path(os.environ["FAKE_DUMP"]) / f"argv-{port}.json").write_text(json.dumps(sys.argv[1:]))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stderr.write(f"fake engine on port {port}\n")
    if os.environ.get("FAKE_SILENT"):
        while True:
            time.sleep(3600)
    host = value_of("--host")
    ThreadingHTTPServer.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ThreadingHTTPServer((host, port), Handler).serve_forever()


if __name__ == "__main__":
    main()
