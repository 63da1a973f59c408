"""Runs meshwright for the documentation, so that what a page shows is what the program prints.

A page holds a block such as

    <!-- [[[cog
    import show
    show.run("plan llama-3.1-70b --cluster h100-sxm --gpus 64 --seq 8192 --batch 512")
    ]]] -->
    <!-- [[[end]]] -->

and `make fix` puts the command and its output between the markers; `make check` fails if they would change.
"""

from __future__ import annotations

import re
import shlex

import cog  # the module that cog gives to the code inside a page
from click.testing import CliRunner

from meshwright.cli.app import cli


def run(command: str, *, exit_code: int = 0, mask: tuple[tuple[str, str], ...] = (), lines: slice = slice(None)) -> None:
    """Show ``meshwright COMMAND`` and what it prints.

    Args:
        command: the command line, without the program's name.
        exit_code: what it must exit with; anything else is an error in the page.
        mask: (pattern, replacement) pairs for what differs from run to run, such as the seconds of a search.
        lines: which lines of the output to show; cuts are shown as "...".
    """
    # A fixed width: the page must not depend on the terminal that it was made in.
    result = CliRunner(env={"COLUMNS": "102"}).invoke(cli, shlex.split(command), prog_name="meshwright")
    if result.exit_code != exit_code:
        raise RuntimeError(f"`meshwright {command}` exited with {result.exit_code}, not {exit_code}: {result.output}") from result.exception
    text = result.output.rstrip()
    for pattern, replacement in mask:
        text = re.sub(pattern, replacement, text)
    all_lines = text.split("\n")
    shown = all_lines[lines]
    if len(shown) < len(all_lines):
        shown.append("...")
    cog.outl("\n".join(["", "```console", f"$ meshwright {command}", *shown, "```", ""]))


def rules() -> None:
    """Every rule across the inputs: what is refused and why, what is warned about and why."""
    from meshwright.spec.rules import CAUTIONS, RULES

    for title, key, table in (
        ("Refused", "key", [(rule.code, f"`{rule.key}`", rule.holds.__doc__) for rule in RULES]),
        ("Warned about", "", [(caution.code, "", caution.applies.__doc__) for caution in CAUTIONS]),
    ):
        cog.outl(f"\n## {title}\n\n| rule | {key} | why |\n|---|---|---|")
        for code, about, reason in table:
            cog.outl(f"| `{code}` | {about} | {' '.join((reason or '').split()).replace('|', '/')} |")
    cog.outl()


def frameworks() -> None:
    """What each framework cannot express, line by line."""
    from meshwright.search.runs_on import FRAMEWORKS, limits

    for framework in FRAMEWORKS:
        cog.outl(f"\n## {framework}\n")
        if not limits(framework):
            cog.outl("Every layout that the rules accept.")
            continue
        cog.outl("| key | can be | source |\n|---|---|---|")
        for limit in limits(framework):
            cog.outl(f"| `{limit.key}` | {limit.legal} | {limit.source} |")
    cog.outl()


def help_of_every_command() -> None:
    """The command-line reference: ``--help`` of the program and of each verb."""
    import click

    for name in ["", *cli.list_commands(click.Context(cli))]:
        cog.outl(f"\n## meshwright {name}".rstrip())
        run(f"{name} --help".strip())
