"""``meshwright memory``: bytes by category and stage, and what holds the peak."""

from __future__ import annotations

from meshwright.cli.job import resolved, warn
from meshwright.cli.options import PlanArguments, command, plan_arguments
from meshwright.cli.output import emit


@command()
@plan_arguments("PLAN")
def memory(job: PlanArguments, as_json: bool) -> int:
    """Show the memory of each pipeline stage, and what holds the peak.

    PLAN is a plan.toml, or a model with --cluster and --layout. Exits with 1 if the layout does not fit.
    """
    from meshwright.api import memory_of, numbers_of
    from meshwright.explain.fit import remedies, remedies_in_words
    from meshwright.render.memory import memory_text

    asked = resolved(job)
    report = memory_of(asked)
    warn(report.warnings)

    def text() -> str:
        hint = "" if report.fits else remedies_in_words(remedies(numbers_of(asked), asked.memory_fraction))
        return memory_text(report, hint)

    emit(as_json, report.as_json(), text)
    return 0 if report.fits else 1
