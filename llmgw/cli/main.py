"""`llmgw`: the operator's command. Exit codes: 0 done, 1 refused or not reached, 2 usage."""

import json
import os
import sys

import click
import msgspec
from rich.console import Console

import llmgw
from llmgw.cli.client import ADMIN_VARIABLE, DEFAULT_URL, Admin, NotReached, choose_admin, get, wrong_answer
from llmgw.cli.completion import completion
from llmgw.cli.config import config
from llmgw.cli.status import print_status
from llmgw.core.statusdoc import Status

PIPED_COLUMNS = 240
"""Width where the output is no terminal and COLUMNS says nothing: a script wants one fact a line, not folded."""

ADMIN_HELP = f"Control's admin address, [admin] listen of cluster.toml (else {ADMIN_VARIABLE}, else {DEFAULT_URL})."


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(llmgw.__version__, prog_name="llmgw")
@click.option("--admin", metavar="URL", help=ADMIN_HELP)
@click.pass_context
def main(context: click.Context, admin: str | None) -> None:
    """Look at an llmgw cluster, and tell it what to do. `llmgw completion bash` makes a shell complete its words."""
    context.obj = admin


main.add_command(config)
main.add_command(completion)


@main.command()
@click.option("--admin", metavar="URL", help=ADMIN_HELP)
@click.option("--json", "as_json", is_flag=True, help="The whole status as JSON, for scripts.")
@click.pass_obj
def status(outer_admin: str | None, admin: str | None, as_json: bool) -> None:
    """Nodes, GPUs, models, replicas, routers: each fact with its age."""
    where = _admin(admin or outer_admin)
    try:
        body = get(where, "/api/v1/status")
        found = _decoded(where, body)
    except NotReached as error:
        click.echo(f"llmgw: {error}", err=True)
        sys.exit(1)
    if as_json:
        # ASCII only: a name that some machine sent cannot steer the terminal.
        click.echo(json.dumps(json.loads(body), indent=2))
    else:
        print_status(_console(), found)


def _admin(option: str | None) -> Admin:
    try:
        return choose_admin(option, os.environ)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _decoded(admin: Admin, body: bytes) -> Status:
    try:
        return msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError as error:
        raise wrong_answer(admin, str(error)) from None


def _console() -> Console:
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return Console(highlight=False)
    return Console(highlight=False, width=PIPED_COLUMNS)
