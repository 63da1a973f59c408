"""``meshwright estimate``: step time and its parts, MFU, memory; several layouts side by side."""

from __future__ import annotations

import click

from meshwright.cli.job import resolved, warn
from meshwright.cli.options import OneOf, PlanArguments, command, plan_arguments
from meshwright.cli.output import emit

MFU_CONVENTIONS = ("causal", "full", "hardware", "6n")


@command()
@plan_arguments("PLAN", layouts="many")
@click.option(
    "--mfu-convention",
    type=OneOf("NAME", MFU_CONVENTIONS),
    default="causal",
    show_default=True,
    help="Flops that MFU counts: causal, full, hardware or 6n.",
)
def estimate(job: PlanArguments, mfu_convention: str, as_json: bool) -> int:
    """Estimate a step: its time by parts, MFU, memory, whether it fits.

    PLAN is a plan.toml, or a model with --cluster and --layout. Several --layout give one comparison; with a plan.toml they
    are compared with its own. Exits with 1 if nothing fits.
    """
    from meshwright.api import candidates
    from meshwright.explain.compare import compare
    from meshwright.explain.fit import remedies, remedies_in_words
    from meshwright.render.estimate import comparison_text, estimate_text

    asked = resolved(job)
    found = candidates(asked, mfu_convention)
    if not as_json:
        warn(warning for each in found for warning in each.estimate.warnings)
    if len(found) > 1:
        comparison = compare(found)
        emit(as_json, comparison.as_json(), lambda: comparison_text(comparison))
        return 0 if comparison.fits else 1
    (only,) = found

    def text() -> str:
        verdict = only.memory.verdict
        if not only.estimate.fits:
            verdict += f"; {remedies_in_words(remedies(only.numbers, asked.memory_fraction))}"
        return estimate_text(only.estimate, verdict)

    emit(as_json, only.estimate.as_json(), text)
    return 0 if only.estimate.fits else 1
