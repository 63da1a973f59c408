"""``meshwright ranks``: the groups of every axis, and the network tier that each spans."""

from __future__ import annotations

import click

from meshwright.cli.job import EVERYTHING, resolved, warn, warn_if_too_large
from meshwright.cli.options import PlanArguments, command, plan_arguments
from meshwright.cli.output import emit


@command()
@plan_arguments("PLAN")
@click.option("--orders", is_flag=True, help="Price every order of the axes instead.")
def ranks(job: PlanArguments, orders: bool, as_json: bool) -> None:
    """Show which ranks form which groups, and the tier that each group spans.

    PLAN is a plan.toml, or a model with --cluster and --layout. With --orders it says which order of the axes is fastest, which
    tier each axis then spans, and what it costs an axis to be moved out.
    """
    from meshwright.api import orders_of, ranks_of
    from meshwright.render.ranks import orders_text, ranks_text

    asked = resolved(job, needs=EVERYTHING if orders else ("cluster", "layout"))
    if orders:
        priced = orders_of(asked)
        emit(as_json, priced.as_json(), lambda: orders_text(priced))
        return
    report = ranks_of(asked)
    if not as_json:
        warn(report.warnings)
    if asked.workload is not None:
        warn_if_too_large(asked)
    emit(as_json, report.as_json(), lambda: ranks_text(report))
