"""`kubectl epochal ...`: the command line with `--kube`, for the cluster that kubectl talks to.

These are two programs, because kubectl finds plug-ins by name: `kubectl-epochal` and, for completion,
`kubectl_complete-epochal`. It passes them all arguments after the name, and lets people write its own options anywhere.
"""

import contextlib
import os
import sys
from collections.abc import Sequence

from epochal.cli.main import app, main

_OPTIONS = ("--context", "--kubeconfig", "--kube-namespace")
"""kubectl's options, and ours of the same kind, that `epochal` takes before the command; each takes a value."""
_NAMESPACE = ("-n", "--namespace")
NO_FILES = 4
"""A directive to kubectl's completion: suggest only these, no names of files."""
TO_FILES = 0


def run() -> None:
    """`kubectl-epochal`."""
    sys.argv[1:] = arguments(sys.argv[1:])
    main()


def arguments(given: Sequence[str]) -> list[str]:
    """The arguments of `epochal` that correspond to those after `kubectl epochal`.

    >>> arguments(["-n", "demo", "get", "streams", "--context", "prod"])
    ['--kube', '--context', 'prod', 'get', '-n', 'demo', 'streams']
    """
    before, after, namespace = ["--kube"], list[str](), list[str]()
    words = list(given)
    while words:
        word = words.pop(0)
        option, equals, _ = word.partition("=")
        value = [] if equals else words[:1]
        if word == "--":
            after += [word, *words]
            words = []
        elif option in _OPTIONS:
            before += [word, *value]
            del words[: len(value)]
        elif not after and option in _NAMESPACE:  # before the command -n is kubectl's; ours comes after it
            namespace = [word, *value]
            del words[: len(value)]
        elif not after and word.startswith("-"):
            before.append(word)
        else:
            after.append(word)
    return [*before, *after[:1], *namespace, *after[1:]]


def complete() -> None:
    """`kubectl_complete-epochal`: a suggestion a line, and a last line with what else a shell may suggest."""
    *words, incomplete = sys.argv[1:] or [""]
    suggestions = complete_words(words, incomplete)
    with contextlib.suppress(BrokenPipeError):
        print(*suggestions, f":{NO_FILES if suggestions else TO_FILES}", sep="\n")


def complete_words(words: Sequence[str], incomplete: str) -> list[str]:
    """What `incomplete` after `words` can become."""
    import typer
    from typer._completion_classes import BashComplete  # what completes `epochal` itself in bash

    completer = BashComplete(typer.main.get_command(app), {}, "epochal", "_EPOCHAL_COMPLETE")
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stderr(nowhere):
        found = completer.get_completions(arguments(words), incomplete)
    return [str(item.value) for item in found]
