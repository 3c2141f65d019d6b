"""`epochal completion`: print the script by which a shell completes."""

from enum import StrEnum
from typing import Annotated

import typer
from typer._completion_shared import get_completion_script  # what typer's own --show-completion prints

EPILOG = """\b
Examples:
  source <(epochal completion bash)                          # for this shell
  epochal completion bash > /etc/bash_completion.d/epochal   # for all
  epochal completion zsh > "${fpath[1]}/_epochal"
  epochal completion fish > ~/.config/fish/completions/epochal.fish

The names of streams are read from the catalog while you type (--catalog on the line, or EPOCHAL_CATALOG); one that
does not answer within a second completes nothing, without a word."""


class Shell(StrEnum):
    """A shell for which there is a completion script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="The shell.", show_default=False)],
) -> None:
    """Print the script by which a shell completes."""
    print(get_completion_script(prog_name="epochal", complete_var="_EPOCHAL_COMPLETE", shell=shell.value))
