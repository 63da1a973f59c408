"""From the arguments that commands share to a resolved job, and the warnings that come with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import PlanArguments
from meshwright.cli.output import tell

if TYPE_CHECKING:
    from meshwright.job import Job
    from meshwright.spec.rules import LayoutWarning

EVERYTHING = ("cluster", "workload", "layout")


def resolved(job: PlanArguments, needs: Sequence[str] = EVERYTHING) -> Job:
    """Look up and check all inputs. Raises InputError with every mistake of them."""
    from meshwright.job import Asked, resolve

    asked = Asked(
        subject=job.subject, cluster=job.cluster, gpus=job.gpus, layouts=job.layouts, seq=job.seq, batch=job.batch,
        precision=job.precision, memory_fraction=job.memory_fraction, stack=job.stack, source=COMMAND_LINE,
    )  # fmt: skip
    return resolve(asked, needs)


def warn(warnings: Iterable[LayoutWarning]) -> None:
    """Warnings go to stderr, each with its remedy."""
    for warning in warnings:
        tell(f"warning: {warning.message}\n  hint: {warning.remedy}")


def warn_if_too_large(job: Job) -> None:
    """Commands that show a layout show it as well when it does not fit, and say so."""
    from meshwright.api import memory_of

    report = memory_of(job)
    if not report.fits:
        tell(f"warning: this layout {report.verdict}\n  hint: `meshwright memory` says what holds the peak")
