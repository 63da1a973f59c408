"""``meshwright prove``: the layout runs on real processes and is compared with one device and with the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshwright.cli.options import Count, OneOf, PlanArguments, command, plan_arguments
from meshwright.cli.output import emit

if TYPE_CHECKING:
    from meshwright.prove.certificate import Certificate
    from meshwright.prove.question import Question

DTYPES = ("float64", "float32", "bf16")


@command()
@plan_arguments("PLAN")
@click.option("--ranks", type=Count(), default=8, show_default=True, help="Processes to run on; a larger plan is scaled down.")
@click.option("--dtype", type=OneOf("DTYPE", DTYPES), default="float64", show_default=True, help="float64 judges numbers exactly.")
@click.option("--steps", type=Count(), default=3, show_default=True, help="Optimizer steps.")
@click.option("--seed", type=Count(), default=1, show_default=True, help="Of weights, tokens and dropout.")
@click.option("--record", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER", help="Keep the recordings here.")
@click.option("--dry", is_flag=True, help="The true sizes and all distinct ranks, without numbers: fake tensors on one process.")
def prove(job: PlanArguments, ranks: int, dtype: str, steps: int, seed: int, record: Path | None, dry: bool, as_json: bool) -> None:
    """Prove a plan: same loss, gradients and weights as one device, and exactly the predicted traffic.

    A plan too large for --ranks is scaled: degrees shrink to 2, sizes to tiny, its structure stays. Exit code 1 if anything differs.
    """
    from meshwright.prove.question import Question

    question = Question(**_inputs(job), ranks=ranks, dtype=dtype, steps=steps, seed=seed, folder=record)
    certificate = _dry(question) if dry else _run(question)
    emit(as_json, certificate.as_json(), certificate.text)
    if not certificate.passed:
        click.get_current_context().exit(1)


def _run(question: Question) -> Certificate:
    from meshwright.prove.run import prove as run_proof

    return run_proof(question)


def _dry(question: Question) -> Certificate:
    from meshwright.prove.dry import prove_dry

    return prove_dry(question)


def _inputs(job: PlanArguments) -> dict[str, Any]:
    """Model, workload, layout and the plan's hash."""
    from meshwright.job import Asked, resolve
    from meshwright.spec.plan_file import Plan, plan_hash

    asked = Asked(
        subject=job.subject, cluster=job.cluster, gpus=job.gpus, layouts=job.layouts, seq=job.seq, batch=job.batch, precision=job.precision,
        memory_fraction=job.memory_fraction, stack=job.stack,
    )  # fmt: skip
    resolved = resolve(asked, needs=("workload", "layout"))
    assert resolved.workload is not None
    stated = resolved.stack.name if resolved.stated_stack else ""
    digest = ""
    if resolved.cluster is not None:
        plan = Plan(
            model=resolved.model, cluster=resolved.cluster, workload=resolved.workload, layout=resolved.layout, stack=stated,
            memory_fraction=resolved.memory_fraction,
        )  # fmt: skip
        digest = plan_hash(plan)
    return {"model": resolved.model, "workload": resolved.workload, "layout": resolved.layout, "plan_hash": digest}
