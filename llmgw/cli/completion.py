"""`llmgw completion SHELL`: the script that makes a shell complete the command's words."""

import click
from click.shell_completion import get_completion_class

SHELLS = {
    "bash": 'eval "$(llmgw completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(llmgw completion zsh)"   in ~/.zshrc',
    "fish": "llmgw completion fish > ~/.config/fish/completions/llmgw.fish",
}
"""Shell -> how its script comes into force."""

PROGRAM = "llmgw"
VARIABLE = "_LLMGW_COMPLETE"
"""By which the shell asks the command for words; the name that click derives from the program's."""


@click.command(epilog="\b\n" + "\n".join(SHELLS.values()))
@click.argument("shell", type=click.Choice(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes llmgw's commands and options in a shell."""
    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(context.find_root().command, {}, PROGRAM, VARIABLE).source())
