"""``meshwright collectives``: every algorithm of a collective, priced, shown step by step, or run on local processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshwright.cli.options import Count, OneOf, Size, command
from meshwright.cli.output import emit, tell
from meshwright.errors import InputError, Mistake, NoAnswer

if TYPE_CHECKING:
    from meshwright.collectives.question import ShownSteps
    from meshwright.collectives.report import CollectiveReport

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@command()
@click.argument("op", type=OneOf("OP", OPS), required=False, metavar="[OP]")
@click.option("--size", type=Size(), help="Payload of a rank; the full tensor of all_gather and reduce_scatter.  [default: 128MiB]")
@click.option("--ranks", type=Count(), help="Ranks of the group, neighbours.  [default: those of a node]")
@click.option("--cluster", metavar="C", help="Price on this: a catalog name or a TOML file.")
@click.option("--run", is_flag=True, help="Run on local processes (torch), against torch's own collective.")
@click.option("--show", is_flag=True, help="Who sends which chunk to whom, step by step.")
@click.option("--algorithm", metavar="NAME", help="Which one to show.  [default: ring; pairwise for all_to_all]")
@click.option("-o", "--output", metavar="FILE.svg", type=click.Path(path_type=Path), help="Draw it, with --show.")
@click.option("--experts", metavar="MODEL", help="all_to_all only: how tokens get to this model's experts, and back.")
@click.option("--tokens", type=Count(), help="Tokens of each rank, with --experts.  [default: 4096]")
@click.option("--load", metavar="FILE.json", type=click.Path(path_type=Path), help='{"loads": [...]}, with --experts.  [default: balanced]')
def collectives(
    op: str | None, size: int | None, ranks: int | None, cluster: str | None, run: bool, show: bool, algorithm: str | None,
    output: Path | None, experts: str | None, tokens: int | None, load: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Algorithms of OP (all_reduce, all_gather, reduce_scatter or all_to_all; all of them if left out).

    Prints for each its steps, the bytes that the busiest rank sends, and, with --cluster, its time and which is fastest from
    which size on. With --experts: what each way to dispatch tokens sends over each tier, and how long it takes.
    """
    if output and not show:
        raise InputError([Mistake("command line", "--output", None, "with --show", problem="is only used with --show")])
    from meshwright.collectives.experts.report import ExpertReport
    from meshwright.collectives.question import CollectiveQuestion, ShownSteps, ask

    question = CollectiveQuestion(
        op=op, size=size, ranks=ranks, cluster=cluster, run=run, show=show, algorithm=algorithm, experts=experts, tokens=tokens, load=load
    )  # fmt: skip
    found = ask(question)
    if isinstance(found, ExpertReport):
        from meshwright.render.experts import experts_text

        emit(as_json, found.as_json(), lambda: experts_text(found))
    elif isinstance(found, ShownSteps):
        _shown(found, output, as_json)
    else:
        _reported(found, as_json)


def _reported(found: tuple[CollectiveReport, ...], as_json: bool) -> None:
    from meshwright.render.collectives import collectives_text

    answer = found[0].as_json() if len(found) == 1 else {"collectives": [one.as_json() for one in found]}
    wrong = [f"{one.op} {row.name}" for one in found for row in one.algorithms if not row.sound]
    if wrong:
        raise NoAnswer(f"not what it should be: {', '.join(wrong)}", answer)
    emit(as_json, answer, lambda: "\n\n\n".join(collectives_text(one) for one in found))


def _shown(found: ShownSteps, output: Path | None, as_json: bool) -> None:
    from meshwright.collectives.show import show_text
    from meshwright.collectives.show_svg import show_svg
    from meshwright.spec.files import write_text

    text = show_text(found.steps, found.algorithm)
    if output:
        write_text(output, show_svg(found.steps, found.algorithm))
        tell(f"wrote {output}")
    emit(as_json, found.as_json(), lambda: text.rstrip("\n"))
