"""``meshwright ranks``: the groups of every axis, and the network tier that each spans."""

from __future__ import annotations

from meshwright.cli.job import resolved, warn, warn_if_too_large
from meshwright.cli.options import PlanArguments, command, plan_arguments
from meshwright.cli.output import emit


@command()
@plan_arguments("PLAN")
def ranks(job: PlanArguments, as_json: bool) -> None:
    """Show which ranks form which groups, and the tier that each group spans.

    PLAN is a plan.toml, or a model with --cluster and --layout.
    """
    from meshwright.api import ranks_of
    from meshwright.render.ranks import ranks_text

    asked = resolved(job, needs=("cluster", "layout"))
    report = ranks_of(asked)
    if not as_json:
        warn(report.warnings)
    if asked.workload is not None:
        warn_if_too_large(asked)
    emit(as_json, report.as_json(), lambda: ranks_text(report))
