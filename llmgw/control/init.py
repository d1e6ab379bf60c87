"""`llmgw-control init DIR`: an annotated cluster.toml from what is found on this machine.

The smallest model that is found is served, any other is written as a comment: a machine that is asked to load all of
somebody's models at once is no good first impression. Addresses stay on loopback, where nobody else can reach them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import trio

from llmgw.config.annotated import cluster_text
from llmgw.config.load import Source, load_cluster
from llmgw.config.schema import ADMIN_PORT, AGENT_PORT, ROUTER_PORT
from llmgw.core.address import Address
from llmgw.core.units import format_bytes
from llmgw.engines import ENGINES
from llmgw.errors import ConfigError, RefusedError
from llmgw.net.machine import (
    InterfaceAddress,
    ModelFile,
    addresses,
    find_models_in_time,
    free_address,
    gpus_of_the_driver,
    model_folders,
    must_be_new,
    write_new,
)

HOST = "127.0.0.1"
SEARCH_SECONDS = 10.0
"""For model files on disks that may be slow."""
MORE_MODELS_MAX = 20
"""That are listed as comments."""
NAME_CHARS_MAX = 100
"""Of a model's name, made from its file's."""
TITLE = "# What llmgw-control runs, and what a llmgw-router of its own reads. Written by `llmgw-control init`.\n"


@attrs.frozen
class Found:
    """What the file is made of."""

    addresses: tuple[InterfaceAddress, ...]
    """Of this machine, as others reach it."""
    agents: Address
    admin: Address
    router: Address
    models: tuple[ModelFile, ...] = ()
    gpus: int = 0
    note: str = ""
    """What could not be looked at."""


def init(folder: Path, models: Path | None, environ: Mapping[str, str], *, state_base: Path | None) -> list[str]:
    """Write `folder`/cluster.toml; what was found and what to do next, as lines. RefusedError.

    state_base: the folder that holds the default `state_dir`; None: it is written.
    """
    file = folder / "cluster.toml"
    must_be_new(file)
    found = trio.run(look, folder, models, environ)
    text = text_of(found, state_known=state_base is not None)
    try:
        load_cluster(Source(str(file), folder, text), {}, engines=tuple(ENGINES), state_base=state_base)
    except ConfigError as error:
        raise RefusedError(f"this would not be a right configuration: {error.mistakes[0]}") from None
    write_new(file, text)
    return told(found, file)


async def look(folder: Path, models: Path | None, environ: Mapping[str, str]) -> Found:
    """Look at this machine."""
    home = Path(environ["HOME"]) if environ.get("HOME", "").startswith("/") else None
    given = [folder / "models", Path.cwd() / "models"]
    folders = (models,) if models is not None else model_folders(given, home)
    found, note = await find_models_in_time(folders, SEARCH_SECONDS)
    agents = free_address(HOST, AGENT_PORT, [ADMIN_PORT, ROUTER_PORT])
    admin = free_address(HOST, ADMIN_PORT, [agents.port, ROUTER_PORT])
    router = free_address(HOST, ROUTER_PORT, [agents.port, admin.port])
    return Found(addresses(), agents, admin, router, found, gpus_of_the_driver(), note)


def text_of(found: Found, *, state_known: bool) -> str:
    """The file. state_known: `state_dir` has a default here."""
    values = {"control.listen": str(found.agents), "router.control": str(found.agents)}
    if not state_known:
        values["state_dir"] = "state"
    for path, address, usual in (
        ("admin.listen", found.admin, ADMIN_PORT),
        ("router.listen", found.router, ROUTER_PORT),
    ):
        if address.port != usual:
            values[path] = str(address)
    remarks: dict[str, list[str]] = {}
    if found.addresses:
        first = Address(found.addresses[0].host, found.agents.port)
        mine = f"This machine's addresses: {', '.join(map(str, found.addresses))}."
        remarks["control.listen"] = [
            mine,
            f'For nodes elsewhere: listen = "{first}", with insecure = true where the network is trusted.',
        ]
        remarks["router.listen"] = [f'For clients elsewhere: listen = "{attrs.evolve(first, port=found.router.port)}".']
    served = _entries(found)
    return cluster_text(TITLE, values, served[:1], remarks, served[1 : 1 + MORE_MODELS_MAX])


def told(found: Found, file: Path) -> list[str]:
    """For whoever typed the command."""
    lines = [f"wrote {file}", f"  agents dial {found.agents}, clients ask {found.router}, `llmgw` asks {found.admin}"]
    if found.models:
        first, *more = _entries(found)
        size = format_bytes(found.models[0].size_bytes)
        on = "on one GPU" if found.gpus else "on the CPU"
        lines.append(f'  serves "{first["models.name"]}" ({size}, {found.models[0].path}) {on}')
        lines += [f"  {len(more)} more found, as comments in the file"] if more else []
    else:
        lines.append("  no model in GGUF format was found: name one in the file, or use --models FOLDER")
    if found.note:
        lines.append(f"  {found.note}")
    return [
        *lines,
        "next:",
        f"  llmgw-control --check {file}",
        f"  llmgw-control {file}",
        f"  llmgw-agent init {file.parent}   (on each node; elsewhere with --server HOST:{found.agents.port})",
    ]


def _entries(found: Found) -> list[dict[str, Any]]:
    """The models as settings, each under a name of its own."""
    names: list[str] = []
    entries = []
    for model in found.models:
        name = _free_name(_plain(model.name), names)
        names.append(name)
        entry: dict[str, Any] = {
            "models.name": name,
            "models.profile.engine": "llamacpp",
            "models.profile.model": str(model.path),
        }
        if found.gpus:
            entry["models.profile.gpus"] = 1
        entries.append(entry)
    return entries


def _plain(name: str) -> str:
    """A comma would make two names of it for llama-server."""
    return name.replace(",", "-").strip()[:NAME_CHARS_MAX] or "model"


def _free_name(name: str, names: list[str]) -> str:
    if name not in names:
        return name
    return next(other for number in range(2, len(names) + 3) if (other := f"{name}-{number}") not in names)
