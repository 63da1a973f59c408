"""``meshwright explain``: what a rank holds, computes and sends; row by row, one row in full, or by axis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from meshwright.cli.job import EVERYTHING, resolved, warn, warn_if_too_large
from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import Count, Index, OneOf, PlanArguments, command, plan_arguments
from meshwright.cli.output import emit
from meshwright.errors import InputError, Mistake
from meshwright.spec.names import PHASES

if TYPE_CHECKING:
    from meshwright.job import Job


@command()
@plan_arguments("PLAN")
@click.option("--layer", type=Index(), help="Only this decoder layer, from 0.")
@click.option("--rank", type=Index(), help="Of this rank.  [default: the first one, or the first that has the layer]")
@click.option("--phase", type=OneOf("PHASE", PHASES), help=f"Only this phase: {', '.join(PHASES)}.")
@click.option("--row", type=Count(), help="One row in full, by its number: formulas with their numbers.")
@click.option("--by", type=OneOf("axis", ("axis",)), help="One line per axis. Without a layout: in letters.")
def explain(
    job: PlanArguments, layer: int | None, rank: int | None, phase: str | None, row: int | None, by: str | None, as_json: bool
) -> None:
    """Show what one rank holds, computes and sends in a step: local shapes, bytes, seconds, and why.

    PLAN is a plan.toml, or a model with --cluster and --layout. Rows are of one call; `x N` is how often a step has it.
    """
    if by is not None:
        _refuse_with_by({"--layer": layer, "--phase": phase, "--row": row})
        _by_axis(job, rank, as_json)
        return
    from meshwright.api import numbers_of, warnings_of
    from meshwright.explain.formula import in_full
    from meshwright.explain.rows import explain_rows
    from meshwright.render.rows import row_text, rows_text

    asked = resolved(job)
    numbers = numbers_of(asked)
    found = explain_rows(numbers, rank, layer, phase, row, warnings_of(asked))
    _warn(asked, found.warnings)
    if row is None or not found.rows:
        emit(as_json, found.as_json(), lambda: rows_text(found))
        return
    facts = in_full(found, numbers)
    emit(as_json, {"rows": [{**found.rows[0].as_json(), "facts": dict(facts)}]}, lambda: row_text(found, facts))


def _by_axis(job: PlanArguments, rank: int | None, as_json: bool) -> None:
    from meshwright.api import explained_by_axis
    from meshwright.explain.by_axis import AxisTable
    from meshwright.render.axes import axes_text, symbolic_text

    in_letters = not job.layouts and not job.is_plan
    asked = resolved(job, () if in_letters else EVERYTHING)
    found = explained_by_axis(asked, rank, COMMAND_LINE)
    if not isinstance(found, AxisTable):
        emit(as_json, found.as_json(), lambda: symbolic_text(found))
        return
    _warn(asked, found.warnings)
    emit(as_json, found.as_json(), lambda: axes_text(found))


def _warn(asked: Job, warnings: Any) -> None:
    warn(warnings)
    warn_if_too_large(asked)


def _refuse_with_by(options: dict[str, object]) -> None:
    given = [(name, value) for name, value in options.items() if value is not None]
    if given:
        legal = "--rank, or nothing, beside --by axis"
        raise InputError([Mistake(COMMAND_LINE, name, value, legal, problem="has no meaning with --by axis") for name, value in given])
