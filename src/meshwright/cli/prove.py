"""``meshwright prove``: the layout runs on real processes and is compared with one device and with the ledger."""

from __future__ import annotations

from pathlib import Path

import click

from meshwright.cli.job import resolved, warn, warn_if_too_large
from meshwright.cli.options import Count, OneOf, PlanArguments, command, plan_arguments
from meshwright.cli.output import emit

DTYPES = ("float64", "float32", "bf16")


@command()
@plan_arguments("PLAN")
@click.option("--ranks", type=Count(), default=8, show_default=True, help="Processes to run on; a larger plan is scaled down.")
@click.option("--dtype", type=OneOf("DTYPE", DTYPES), default="float64", show_default=True, help="float64 judges numbers exactly.")
@click.option("--steps", type=Count(), default=3, show_default=True, help="Optimizer steps.")
@click.option("--seed", type=Count(), default=1, show_default=True, help="Of weights, tokens and dropout.")
@click.option("--record", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Keep the recordings here.")
@click.option(
    "--schedule",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Order of the pipeline stages, in torch's CSV format, in place of the layout's schedule.",
)
@click.option("--dry", is_flag=True, help="The true sizes and all distinct ranks, without numbers or GPUs.")
def prove(
    job: PlanArguments, ranks: int, dtype: str, steps: int, seed: int, record: Path | None, schedule: Path | None, dry: bool, as_json: bool
) -> None:
    """Prove a plan: same loss, gradients and weights as one device, and exactly the predicted traffic.

    A plan too large for --ranks is scaled: degrees shrink to 2, sizes to tiny, its structure stays. Exit code 1 if anything differs.
    """
    from meshwright.api import PROOF_NEEDS, certificate_of
    from meshwright.prove.program import require_torch

    asked = resolved(job, PROOF_NEEDS)
    require_torch()
    warn(asked.warnings[0])
    if asked.cluster is not None:
        warn_if_too_large(asked)
    certificate = certificate_of(asked, ranks, dtype, steps, seed, record, dry, schedule=schedule)
    emit(as_json, certificate.as_json(), certificate.text)
    if not certificate.passed:
        click.get_current_context().exit(1)
