"""What a worker is told, and that it reads just that."""

import sys
from pathlib import Path

import attrs
import pytest

from llmgw.config.schema import Log, LogLevel, Router
from llmgw.core.address import Address
from llmgw.core.units import Duration, Size
from llmgw.net.worker_settings import (
    WORKER_MODULE,
    WorkerSettings,
    parse_worker_arguments,
    router_folder,
    worker_command,
)

SETTINGS = WorkerSettings(
    "/state/router-8080",
    Router(listen=Address("::1", 8080), workers=3, first_byte_timeout=Duration(7.5), body_max=Size(1000)),
    Log(level=LogLevel.WARNING),
)


def test_what_is_written_is_what_is_read() -> None:
    """Settings, number and both sockets survive the command line."""
    executable, _, module, *argv = worker_command(SETTINGS, 2, 5, 6)
    assert (executable, module) == (sys.executable, WORKER_MODULE)
    read = parse_worker_arguments(argv)
    assert read.settings == SETTINGS
    assert (read.index, read.stream_fd, read.listener_fd) == (2, 5, 6)


def test_a_worker_does_not_learn_whom_its_parent_follows() -> None:
    """It follows its parent."""
    following = attrs.evolve(SETTINGS, router=attrs.evolve(SETTINGS.router, control=Address("c", 7070)))
    assert parse_worker_arguments(worker_command(following, 0, 5, 6)[3:]).settings == SETTINGS


@pytest.mark.parametrize("argv", [[], ["{}", "0", "5", "6"], ["x", "0", "5", "6"], ["{}", "a", "5", "6"]])
def test_anything_else_is_refused(argv: list[str]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_worker_arguments(argv)


def test_routers_on_one_state_dir_have_folders_of_their_own() -> None:
    assert router_folder(Path("/s"), 1) != router_folder(Path("/s"), 2)
