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

import contextlib
import io
import json
import re
import shlex
import sys
import textwrap
from functools import lru_cache
from pathlib import Path

import cog  # the module that cog gives to the code inside a page
from click.testing import CliRunner

from meshwright.cli.app import cli

MACHINE = (
    (r"fit; [\d.]+ s, \S+ layouts per second", "fit; ... s, ... layouts per second"),
    (r"(float64), [\d.]+ s", r"\1, ... s"),
    (r"\b\d\.\de[-+]\d\d\b", "..."),
)
"""What of an output depends on the machine: the time of a search and of a proof, and the last digits of its sums."""

COMMAND_WIDTH = 116


def run(command: str, *, exit_code: int = 0, start: str = "", stop: str = "") -> None:
    """Show ``meshwright COMMAND`` and what it prints.

    Args:
        command: the command line, without the program's name.
        exit_code: what it must exit with; anything else is an error in the page.
        start, stop: show the output from the first line that begins with ``start`` up to the line before the next one that begins
            with ``stop``; cuts are shown as "...".
    """
    text = _output(command, exit_code)
    for pattern, replacement in MACHINE:
        text = re.sub(pattern, replacement, text)
    lines = text.split("\n")
    first = _line(lines, start, 0, command) if start else 0
    last = _line(lines, stop, first + 1, command) if stop else len(lines)
    shown = [*(["..."] if first else []), *_stripped(lines[first:last]), *(["..."] if last < len(lines) else [])]
    cog.outl("\n".join(["", "```console", f"$ {folded(f'meshwright {command}')}", *shown, "```", ""]))


def folded(command: str) -> str:
    """A long command over several lines, broken before an option."""
    first, *options = command.split(" --")
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) + 3 > COMMAND_WIDTH:
            lines.append(f"    --{option}")
        else:
            lines[-1] += f" --{option}"
    return " \\\n".join(lines)


def prepare(command: str) -> None:
    """Run ``meshwright COMMAND`` for the file that it saves, and show nothing."""
    _output(command, 0)


def _output(command: str, exit_code: int) -> str:
    """What a terminal shows: warnings, which go to stderr, and the answer."""
    return _run(command, exit_code)[0]


@lru_cache
def _run(command: str, exit_code: int) -> tuple[str, str]:
    """(stdout and stderr, stdout alone). A search that several pages show runs once."""
    Path("build/demo").mkdir(parents=True, exist_ok=True)
    # A fixed width: the page must not depend on the terminal that it was made in.
    result = CliRunner(env={"COLUMNS": "102"}).invoke(cli, shlex.split(command), prog_name="meshwright")
    if result.exit_code != exit_code:
        raise RuntimeError(f"`meshwright {command}` exited with {result.exit_code}, not {exit_code}: {result.output}") from result.exception
    return result.output.rstrip(), result.stdout.rstrip()


def _line(lines: list[str], begin: str, after: int, command: str) -> int:
    found = next((index for index in range(after, len(lines)) if lines[index].startswith(begin)), None)
    if found is None:
        raise RuntimeError(f"no line of `meshwright {command}` begins with {begin!r}")
    return found


def _stripped(lines: list[str]) -> list[str]:
    """Without blanks at the ends of lines, and without empty lines at the end."""
    return "\n".join(line.rstrip() for line in lines).rstrip().split("\n")


def python(code: str) -> None:
    """Show a piece of Python, and what it prints."""
    source = textwrap.dedent(code).strip()
    printed = _printed(source, {"__name__": "__page__"})
    cog.outl("\n".join(["", "```python", source, "```", "", "```text", printed, "```", ""]))


def script(path: str, *arguments: str) -> None:
    """Show a script of this folder, and what it prints."""
    source = (Path(__file__).parent / path).read_text(encoding="utf-8").rstrip()
    before, sys.argv = sys.argv, [path, *arguments]
    try:
        printed = _printed(source, {"__name__": "__main__", "__file__": str(Path(__file__).parent / path)})
    finally:
        sys.argv = before
    words = shlex.join(arguments).replace("'", '"')
    cog.outl("\n".join(["", "```python", source, "```", "", "```console", f"$ python docs/{path} {words}", printed, "```", ""]))


def _printed(source: str, names: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "<page>", "exec"), names)
    return printed.getvalue().rstrip()


def json_keys(command: str, exit_code: int = 0) -> None:
    """The keys of ``meshwright COMMAND --json``, with their types, as one run has them."""
    found = json.loads(_run(f"{command} --json", exit_code)[1])
    cog.outl("\n".join(["", "```text", f"$ {folded(f'meshwright {command} --json')}", *_keys(found, ""), "```", ""]))


def _keys(value: object, indent: str) -> list[str]:
    """A line for each key; of a list its first entry speaks for all."""
    lines = []
    assert isinstance(value, dict)
    alike: dict[tuple[str, ...], str] = {}
    for key, below in value.items():
        if isinstance(below, dict) and len(below) > 2 and tuple(below) in alike:
            lines.append(f"{indent}{key}: as {alike[tuple(below)]}")
            continue
        if isinstance(below, dict):
            alike[tuple(below)] = key
        first = below[0] if isinstance(below, list) and below else below
        many = "list of " if isinstance(below, list) else ""
        inner = _keys(first, indent + "  ") if isinstance(first, dict) else []
        kind = JSON_TYPES[type(first)] if not (isinstance(below, list) and not below) else "list"
        lines.append(f"{indent}{key}: {many if kind != 'list' else ''}{kind}")
        lines += inner
    return lines


JSON_TYPES = {dict: "object", str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", list: "list"}


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


def network_curves() -> None:
    """The fitted constants of every network in the catalog."""
    from meshwright.spec.load_network import catalog_curves, catalog_networks
    from meshwright.units import format_rate, format_seconds, format_traffic

    head = ["network", "collective", "nodes", "ranks", "launch", "step", "bandwidth", "half", "median error", "sizes left out"]
    cog.outl(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for name in catalog_networks():
        for row in catalog_curves(name):
            curve = row
            cells = [
                name, f"{row.op} {row.algorithm}", row.nodes, ", ".join(map(str, row.ranks)), format_seconds(curve.launch_s),
                format_seconds(curve.step_latency_s), format_rate(curve.bandwidth_bytes_per_s), format_traffic(curve.half_bytes),
                f"{row.median_error:.1%}", "" if row.left_out_error is None else f"{row.left_out_error:.1%}",
            ]  # fmt: skip
            cog.outl(f"| {' | '.join(map(str, cells))} |")
    cog.outl()


def fitted_times(name: str, ranks: int, payload_bytes: int) -> None:
    """Fitted seconds of an all_reduce and of its two halves inside one node."""
    from meshwright.calibrate.network import Point, predicted_s
    from meshwright.spec.load_network import catalog_curves
    from meshwright.units import format_seconds

    found = {(row.op, row.algorithm): row for row in catalog_curves(name) if row.nodes == 1}
    seconds = {key: predicted_s(curve, key[1], Point(key[0], ranks, payload_bytes, 1.0)) for key, curve in found.items()}
    cog.outl("\n| collective | time |\n|---|---|")
    chosen = [("all_reduce", "in_switch"), ("reduce_scatter", "ring"), ("all_gather", "ring")]
    for op, algorithm in chosen:
        cog.outl(f"| {op}, {algorithm.replace('_', ' ')} | {format_seconds(seconds[op, algorithm])} |")
    both = sum(seconds[key] for key in chosen[1:])
    cog.outl(f"| the two halves together | {format_seconds(both)}: {both / seconds[chosen[0]] - 1:+.0%} |\n")
