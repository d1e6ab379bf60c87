"""The admin server: health, metrics and the status over HTTP, on a socket that main has bound.

Starlette on hypercorn's Trio worker. Every answer but the metrics is JSON, errors included, so that a script
needs no second way of reading.
"""

import http
import logging
import socket
from typing import Any, Protocol

import hypercorn.trio
import msgspec
import trio
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from llmgw.core.statusdoc import Status

GRACE_SECONDS = 3.0
"""How long an answer that is being written may take after the end was asked for."""
HEAD_BYTES_MAX = 16 * 1024
"""Of a request: nobody sends this server cookies or tokens worth more."""
KEEP_ALIVE_SECONDS = 30.0
"""A scraper comes every 15 s; anybody else may connect anew."""

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class AdminView(Protocol):
    """What the server shows. Each method is quick and does not block."""

    def status(self) -> Status:
        """Everything, now."""

    def readiness(self) -> tuple[bool, str]:
        """Whether this control can do its work, and its state in a word or a sentence."""

    def metrics(self) -> bytes:
        """In the text format of Prometheus."""


def admin_app(view: AdminView) -> Starlette:
    """The ASGI application."""

    # Starlette calls a plain function in a thread; these are async to be called in the loop that owns the state.
    async def healthz(_request: Request) -> Response:
        return _json({"status": "alive"})

    async def readyz(_request: Request) -> Response:
        ready, state = view.readiness()
        return _json({"ready": ready, "state": state}, 200 if ready else 503)

    async def status(_request: Request) -> Response:
        return _json(view.status())

    async def metrics(_request: Request) -> Response:
        return Response(view.metrics(), media_type=METRICS_TYPE)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
            Route("/api/v1/status", status),
        ],
        exception_handlers={HTTPException: _error},
    )


async def serve_admin(
    view: AdminView,
    listener: socket.socket,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve on `listener` (bound and listening, closed at the end) until cancelled, then finish what is in flight."""
    listener.setblocking(False)
    config = Config()
    # Hypercorn takes over the file descriptor and closes it, so it gets one of its own.
    config.bind = [f"fd://{listener.detach()}"]
    config.accesslog = None
    config.errorlog = logging.getLogger("llmgw.control.admin")
    config.graceful_timeout = GRACE_SECONDS
    config.shutdown_timeout = GRACE_SECONDS
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.h11_max_incomplete_size = HEAD_BYTES_MAX
    config.include_server_header = False
    stop = trio.Event()
    app: Any = admin_app(view)

    async def run() -> None:
        with trio.CancelScope(shield=True):
            await hypercorn.trio.serve(app, config, shutdown_trigger=stop.wait, mode="asgi")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        task_status.started()
        try:
            await trio.sleep_forever()
        finally:
            stop.set()


def _json(value: Any, code: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(value), status_code=code, headers=headers, media_type="application/json")


async def _error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    detail = error.detail
    if error.status_code == http.HTTPStatus.NOT_FOUND:
        detail = f"there is no {request.url.path}; there are /healthz, /readyz, /metrics and /api/v1/status"
    elif error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
        detail = f"{request.method} is not allowed on {request.url.path}"
    return _json({"error": detail}, error.status_code, dict(error.headers or {}))
