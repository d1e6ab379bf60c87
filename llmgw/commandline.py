"""What the daemons' mains share: their command lines, reading the files, and how a mistake in one is told.

Everything that the pure `config` may not touch is here: files, the host's name and who runs this process.
"""

import argparse
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import attrs

import llmgw
from llmgw.config.load import Loaded, Source, load_cluster, load_node
from llmgw.config.schema import AGENT_PORT, ClusterConfig, NodeConfig
from llmgw.core.address import parse_address
from llmgw.engines import ENGINES
from llmgw.errors import ConfigError, Mistake, RefusedError
from llmgw.keyfiles import read_key_files
from llmgw.logs import printable

EXIT_CONFIG = 2
"""The configuration or the command line is wrong, and nothing was started."""

FILE_BYTES_MAX = 16 * 1024**2
"""Of a configuration: thousands of models fit many times; a wrong path to a model file does not get read."""

EXIT_REFUSED = 1
"""What was asked for is not done, for a reason that is said."""

C = TypeVar("C")

Init: TypeAlias = Callable[[argparse.Namespace], Sequence[str]]
"""Writes a configuration; gives lines for a person. RefusedError."""


def cluster_parser(program: str, purpose: str, *, writes: str = "") -> argparse.ArgumentParser:
    """`PROGRAM FILE [--check]`, for llmgw-control and llmgw-router; results are `file` and `check`.

    writes: the file that `PROGRAM init DIR` writes, where there is such a command.
    """
    parser = _parser(program, purpose, writes=writes)
    parser.add_argument("file", metavar="cluster.toml", help="the configuration")
    return parser


def node_parser(program: str, purpose: str) -> argparse.ArgumentParser:
    """`PROGRAM [FILE] [--server HOST:PORT] [--node-id ID] [--check]`; results are named like that, with `_`."""
    parser = _parser(program, purpose, writes="node.toml")
    parser.add_argument("file", metavar="node.toml", nargs="?", help="the configuration; not needed with --server")
    parser.add_argument("--server", metavar="HOST:PORT", help="llmgw-control's agent port, the setting `control`")
    parser.add_argument(
        "--node-id", metavar="ID", help="this node's name, the setting `node_id` (else the host's name)"
    )
    return parser


def run_init(argv: Sequence[str] | None, parser: argparse.ArgumentParser, init: Init) -> None:
    """Where the command line is `PROGRAM init ...`: do that and end the process, with 1 and the reason if refused."""
    words = sys.argv[1:] if argv is None else list(argv)
    if words[:1] != ["init"]:
        return
    try:
        lines = init(parser.parse_args(words[1:]))
    except RefusedError as error:
        print(printable(f"{parser.prog}: {error}"), file=sys.stderr)
        raise SystemExit(EXIT_REFUSED) from None
    for line in lines:
        print(printable(line))
    raise SystemExit(0)


def init_parser(program: str, file: str) -> argparse.ArgumentParser:
    """`PROGRAM init DIR [--models FOLDER]`; results are `folder` and `models`."""
    purpose = f"Write DIR/{file}, annotated, from what is found on this machine. No file is overwritten."
    parser = argparse.ArgumentParser(prog=f"{program} init", description=purpose)
    parser.add_argument("folder", metavar="DIR", type=_absolute, help=f"where {file} is written; made if need be")
    parser.add_argument("--models", metavar="FOLDER", type=_folder, help="where model files are, if unusual")
    return parser


def node_init_parser(program: str) -> argparse.ArgumentParser:
    """As `init_parser`, with `--server` and `--node-id`."""
    parser = init_parser(program, "node.toml")
    parser.add_argument("--server", metavar="HOST:PORT", type=_dialled, help="llmgw-control's agent port")
    parser.add_argument("--node-id", metavar="ID", help="this node's name (else the host's name)")
    return parser


def control_beside(folder: Path, environ: Mapping[str, str]) -> str | None:
    """Where this machine dials the control of `folder`/cluster.toml; None where that file is missing or wrong."""
    try:
        listen = read_cluster(str(folder / "cluster.toml"), environ).config.control.listen
    except ConfigError:
        return None
    if listen is None:
        return None
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}
    return str(attrs.evolve(listen, host=everywhere.get(listen.host, listen.host)))


def read_control(file: str, environ: Mapping[str, str], keys: dict[tuple[str, str], str]) -> Loaded[ClusterConfig]:
    """As `read_cluster`, every profile checked by its engine's adapter, and the key files read into `keys`."""
    loaded = read_cluster(file, environ)
    mistakes = list(engine_mistakes(loaded, file))
    try:
        keys.update(read_key_files(loaded.config))
    except ConfigError as error:
        mistakes.extend(error.mistakes)
    if mistakes:
        raise ConfigError(tuple(mistakes))
    return loaded


def engine_mistakes(loaded: Loaded[ClusterConfig], file: str) -> Iterator[Mistake]:
    """What the engines' adapters find wrong with the profiles, wherever they would run."""
    for number, model in enumerate(loaded.config.models):
        if model.profile is None:
            continue
        prefix = f"models[{number}].profile"
        for mistake in ENGINES[model.profile.engine].check(model.profile):
            path = f"{prefix}.{mistake.path}" if mistake.path else prefix
            places = (path, path.rpartition("[")[0], prefix)
            origin = next((loaded.origins[place] for place in places if place in loaded.origins), file)
            yield attrs.evolve(mistake, origin=mistake.origin or origin, path=path)


def read_cluster(file: str, environ: Mapping[str, str], *, base: Path | None = None) -> Loaded[ClusterConfig]:
    """The configuration of llmgw-control and llmgw-router. ConfigError with every mistake.

    base: the folder that relative paths are under, where that is not the file's own.
    """
    source = _source(file, base)
    return load_cluster(source, environ, engines=tuple(ENGINES), state_base=state_base(environ))


def read_node(
    file: str | None,
    environ: Mapping[str, str],
    *,
    server: str | None = None,
    node_id: str | None = None,
    base: Path | None = None,
) -> Loaded[NodeConfig]:
    """The configuration of llmgw-agent, with or without a file. ConfigError with every mistake. base: as there."""
    source = Source("no configuration file", Path.cwd()) if file is None else _source(file, base)
    options: dict[str, tuple[str, str]] = {}
    if server is not None:
        options["control"] = ("--server", server)
    if node_id is not None:
        options["node_id"] = ("--node-id", node_id)
    return load_node(source, environ, options=options, host_name=socket.gethostname(), state_base=state_base(environ))


def settle(load: Callable[[], Loaded[C]], *, check: bool) -> Loaded[C]:
    """What `load` gives. A mistake ends the process with code 2, every one on a line of its own on standard error.

    With `check` the process ends either way: with "ok" and code 0 where there is no mistake.
    """
    try:
        loaded = load()
    except ConfigError as error:
        for mistake in error.mistakes:
            print(printable(str(mistake)), file=sys.stderr)
        count = len(error.mistakes)
        print(f"{count} mistake{'s' if count > 1 else ''}, nothing was started", file=sys.stderr)
        raise SystemExit(EXIT_CONFIG) from None
    if check:
        for note in loaded.notes:
            print(f"note: {printable(note)}", file=sys.stderr)
        print("ok")
        raise SystemExit(0)
    return loaded


def state_base(environ: Mapping[str, str], *, root: bool | None = None) -> Path | None:
    """The folder for state where no setting names one: /var/lib/llmgw as root, else in the user's state folder.

    None where neither XDG_STATE_HOME nor HOME says which that is.
    """
    if os.geteuid() == 0 if root is None else root:
        return Path("/var/lib/llmgw")
    # The XDG rules: a relative value is to be ignored.
    if (state_home := environ.get("XDG_STATE_HOME", "")).startswith("/"):
        return Path(state_home) / "llmgw"
    if (home := environ.get("HOME", "")).startswith("/"):
        return Path(home) / ".local/state/llmgw"
    return None


def _parser(program: str, purpose: str, *, writes: str = "") -> argparse.ArgumentParser:
    epilog = f"`{program} init DIR` writes an annotated DIR/{writes} from what is found on this machine."
    parser = argparse.ArgumentParser(prog=program, description=purpose, epilog=epilog if writes else None)
    parser.add_argument("--version", action="version", version=f"{program} {llmgw.__version__}")
    parser.add_argument(
        "--check", action="store_true", help="only check the configuration: 0 and ok, or 2 and every mistake"
    )
    return parser


def _absolute(text: str) -> Path:
    return Path(text).absolute()


def _folder(text: str) -> Path:
    folder = _absolute(text)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{folder} is no folder")
    return folder


def _dialled(text: str) -> str:
    """An address in the form in which it is written into a file."""
    try:
        return str(parse_address(text, default_port=AGENT_PORT))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _source(file: str, base: Path | None) -> Source:
    # Not resolved: paths are relative to the folder of a link, not of its target.
    return Source(file, Path(file).absolute().parent if base is None else base, read_text(file))


def read_text(file: str) -> str:
    """The text of a configuration. ConfigError where it cannot be read, with the absolute path tried."""
    path = Path(file).absolute()
    try:
        with path.open("rb") as opened:
            data = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError((Mistake(str(path), "", f"cannot be read: {error.strerror}"),)) from None
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError((Mistake(str(path), "", f"expected a configuration of at most {FILE_BYTES_MAX} bytes"),))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError((Mistake(f"{file}:{line}", "", "not TOML: expected UTF-8 text"),)) from None
    return text
