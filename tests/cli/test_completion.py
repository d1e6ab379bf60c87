"""The script for a shell, and what the shell then asks of the command."""

import pytest
from click.testing import CliRunner

from llmgw.cli.completion import PROGRAM, SHELLS, VARIABLE
from llmgw.cli.main import main


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_its_script(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in result.stdout
    assert PROGRAM in result.stdout


def test_the_command_answers_what_the_script_asks() -> None:
    """As bash asks for what begins with `llmgw co` and `llmgw config `."""
    for words, index, expected in (("llmgw co", "1", {"config", "completion"}), ("llmgw config ", "2", {"show"})):
        environ = {VARIABLE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": index}
        result = CliRunner().invoke(main, [], env=environ, prog_name=PROGRAM)
        assert result.exit_code == 0
        assert expected <= {line.partition(",")[2] for line in result.stdout.splitlines()}


def test_the_help_says_how() -> None:
    assert "llmgw completion bash" in CliRunner().invoke(main, ["--help"]).stdout
    assert SHELLS["fish"] in CliRunner().invoke(main, ["completion", "--help"]).stdout


def test_another_shell_is_wrong_usage() -> None:
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2
