"""`llmgw config`: what a configuration file says, what is wrong with it, what another one would change."""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from llmgw.cli.text import clean, count
from llmgw.errors import ConfigError, Mistake, RefusedError

if TYPE_CHECKING:
    from llmgw.cli.config_files import Kind

EXIT_MISTAKES = 2

F = TypeVar("F", bound=Callable[..., Any])


def of_a_kind(command: F) -> F:
    """Options that say which of the two files it is."""
    for option in (
        click.option("--node", "kind", flag_value="node", help="It is a node.toml, of llmgw-agent."),
        click.option("--cluster", "kind", flag_value="cluster", help="It is a cluster.toml, of llmgw-control."),
        click.option("--json", "as_json", is_flag=True, help="As JSON, for scripts."),
    ):
        command = option(command)
    return command


@click.group()
def config() -> None:
    """Look at configuration files, as the daemons read them.

    A cluster.toml and a node.toml are told apart by what is in them. Variables LLMGW_... beat the file here as they
    do for a daemon: LLMGW_CONTROL__LISTEN is [control] listen. A bool is one of true, yes, on, 1, false, no, off, 0,
    letter case aside; an empty variable is a mistake.
    """


@config.command()
@click.argument("file", metavar="FILE", type=click.Path())
@of_a_kind
def show(file: str, kind: str | None, as_json: bool) -> None:
    """Every value that is in force, with its origin.

    That is the file with its line, a variable, or the default. Secrets are shown as ***.
    """
    from llmgw.cli import config_files  # noqa: PLC0415  the other commands start without it

    try:
        text = config_files.show(file, _kind(kind), os.environ, json_wanted=as_json)
    except ConfigError as error:
        _tell(error.mistakes)
        sys.exit(EXIT_MISTAKES)
    click.echo(text, nl=False)


@config.command()
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@of_a_kind
def check(files: tuple[str, ...], kind: str | None, as_json: bool) -> None:
    """Every mistake of every file. Exit code 2 if there is any.

    The list is that of the daemon's own --check.
    """
    from llmgw.cli import config_files  # noqa: PLC0415  the other commands start without it

    checked = [config_files.check(file, _kind(kind), os.environ) for file in files]
    if as_json:
        click.echo(config_files.checks_as_json(checked), nl=False)
    else:
        for one in checked:
            _tell(one.mistakes)
            for note in one.notes:
                click.echo(f"note: {clean(note)}", err=True)
            if not one.mistakes:
                click.echo(f"{clean(one.file)}: ok ({config_files.NAMES[one.kind]})")
    total = sum(len(one.mistakes) for one in checked)
    if total:
        wrong = sum(bool(one.mistakes) for one in checked)
        click.echo(f"{count(total, 'mistake')} in {wrong} of {count(len(checked), 'file')}", err=True)
        sys.exit(EXIT_MISTAKES)


@config.command()
@click.argument("old", metavar="OLD", type=click.Path())
@click.argument("new", metavar="NEW", type=click.Path())
@of_a_kind
def diff(old: str, new: str, kind: str | None, as_json: bool) -> None:
    """What NEW would do in the place of OLD.

    Which models would start, stop or be launched anew, what changes in place, and what needs a restart of the daemon.
    Relative paths in NEW are taken to be under the folder of OLD. Nothing is done.
    """
    from llmgw.cli import config_files  # noqa: PLC0415  the other commands start without it

    try:
        text = config_files.diff(old, new, _kind(kind), os.environ, json_wanted=as_json)
    except ConfigError as error:
        _tell(error.mistakes)
        sys.exit(EXIT_MISTAKES)
    except RefusedError as error:
        raise click.UsageError(str(error)) from None
    click.echo(text if as_json else "".join(f"{clean(line)}\n" for line in text.splitlines()), nl=False)


def _kind(word: str | None) -> "Kind | None":
    from llmgw.config.schema import ClusterConfig, NodeConfig  # noqa: PLC0415  the other commands start without it

    return None if word is None else NodeConfig if word == "node" else ClusterConfig


def _tell(mistakes: tuple[Mistake, ...]) -> None:
    for mistake in mistakes:
        click.echo(clean(str(mistake)), err=True)
