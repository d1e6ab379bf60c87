"""The folders of launches below `state_dir/shards`: their names, what is kept of the forgotten ones, and reading them.

<8 hex digits of the shard's hash>-<epoch>                a launch
<8 hex digits of the shard's hash>-<epoch>.forgotten      only its output counts, until the shard's next one
"""

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from llmgw.agent.launch import JsonObject
from llmgw.agent.shim_files import read_json

LAUNCH = "launch.json"
"""The agent's own file in the folder: whose launch it is, and the supervisor's state."""
FORGOTTEN = ".forgotten"
LAUNCHED = re.compile(r"[0-9a-f]{8}-([0-9]+)")
FORGOTTEN_MAX = 32
"""Folders whose output is kept, of shards that did not come again: 8 MiB each at worst."""


def shard_hash(shard: str) -> str:
    """8 hex digits: shard names have slashes and may be longer than a file name."""
    return hashlib.sha256(shard.encode(errors="surrogatepass")).hexdigest()[:8]


def folder_name(shard: str, epoch: int) -> str:
    """The folder of a launch."""
    return f"{shard_hash(shard)}-{epoch}"


def launch_folders(shards: Path) -> list[Path]:
    """Those that are not forgotten, in order of name."""
    return sorted(path for path in shards.iterdir() if LAUNCHED.fullmatch(path.name) and path.is_dir())


@contextlib.contextmanager
def open_folder(path: Path) -> Iterator[int]:
    """A descriptor of the folder. OSError: it cannot be opened."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


def read_file(path: Path, name: str) -> JsonObject | None:
    """A JSON object in the folder; None: there is none that can be read."""
    try:
        with open_folder(path) as fd:
            return read_json(fd, name)
    except OSError:
        return None


def read_launch(path: Path) -> JsonObject | None:
    """The agent's own file; None: there is none, or it names no launch."""
    launch = read_file(path, LAUNCH)
    if launch is None or not isinstance(launch.get("shard"), str) or type(launch.get("epoch")) is not int:
        return None
    return launch


def previous_folder(path: Path) -> Path | None:
    """The folder of the launch before the one in `path`, forgotten or not."""
    before, _, epoch = path.name.partition("-")
    earlier = [
        (int(match[1]), other)
        for other in path.parent.glob(f"{before}-*")
        if (match := LAUNCHED.fullmatch(other.name.removesuffix(FORGOTTEN))) and int(match[1]) < int(epoch)
    ]
    return max(earlier)[1] if earlier else None


def forget_folder(path: Path) -> None:
    """Keep its output only, in place of what was kept of the shard before. Twice is no harm."""
    kept = path.with_name(path.name + FORGOTTEN)
    if path.exists():
        shutil.rmtree(kept, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):  # a person took it away, or an earlier attempt got this far
        path.rename(kept)
    others = sorted((other for other in path.parent.glob(f"*{FORGOTTEN}") if other != kept), key=_modified)
    same = [other for other in others if other.name.partition("-")[0] == path.name.partition("-")[0]]
    rest = [other for other in others if other not in same]
    for other in same + rest[: max(0, len(rest) + 1 - FORGOTTEN_MAX)]:
        shutil.rmtree(other, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
