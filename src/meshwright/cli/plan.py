"""``meshwright plan``: which layout, of all legal ones, is fastest and fits; why that one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import Count, PlanArguments, Tokens, command, plan_arguments
from meshwright.cli.output import emit, tell
from meshwright.errors import NoAnswer

if TYPE_CHECKING:
    from meshwright.job import Job
    from meshwright.search.evaluate import Found
    from meshwright.search.plan import PlanAnswer, Progress


@command()
@plan_arguments("MODEL", layouts="none")
@click.option("--tokens", type=Tokens(), help="Tokens of the whole run, e.g. 15T: prints days and GPU-hours.")
@click.option("--top", type=Count(), default=5, show_default=True, help="Plans to show.")
@click.option("--constraint", "constraints", multiple=True, metavar="TERM", help='What a layout must be, e.g. "tp<=8,pp=1". Repeatable.')
@click.option("--vocab-pad", type=Count(), default=1, show_default=True, help="Pad the vocabulary to a multiple of this x tp.")
@click.option("--save", type=click.Path(path_type=Path), help="Write the first plan to this file.")
def plan(
    job: PlanArguments, tokens: int | None, top: int, constraints: tuple[str, ...], vocab_pad: int, save: Path | None, as_json: bool
) -> None:  # fmt: skip
    """Find the fastest layout that fits, and say why it is that one.

    A constraint is KEY<=VALUE (or <, =, !=, >, >=) of tp, cp, pp, ep, etp, dp, dp_replicate, dp_shard, mb, virtual_stages and zero, or
    KEY=WORD (or !=) of sp, cp_kind, schedule, recompute and zero_variant. Layouts that no framework runs are left out, unless the schedule
    is constrained. Exits with 1 if nothing fits.
    """
    from meshwright import api
    from meshwright.render.plan import plan_text
    from meshwright.units import format_count

    answer = api.plan(
        job.subject, cluster=job.cluster, gpus=job.gpus, seq=job.seq, batch=job.batch, precision=job.precision, stack=job.stack,
        memory_fraction=job.memory_fraction, constraints=constraints, top=top, tokens=tokens, vocab_pad=vocab_pad,
        progress=_progress(), source=COMMAND_LINE,
    )  # fmt: skip
    resolved = answer.inputs
    workload = resolved.workload
    assert workload is not None and resolved.cluster is not None
    title = (
        f"{resolved.model.name} on {answer.gpus:,} x {resolved.cluster.name}, sequence {workload.seq:,}, batch {workload.batch:,} "
        f"({format_count(workload.batch * workload.seq)} tokens a step)"
    )
    if answer.nearest is not None or not answer.plans:
        raise NoAnswer(plan_text(answer, title), answer.as_json())
    if save is not None:
        _save(answer, resolved, save)
    emit(as_json, answer.as_json(), lambda: plan_text(answer, title))


def _save(answer: PlanAnswer, resolved: Job, path: Path) -> None:
    from meshwright.api import plan_of
    from meshwright.spec.plan_file import save_plan

    save_plan(plan_of(resolved, answer.plans[0].estimate.layout), path)
    tell(f"wrote {path}")


def _progress() -> Progress | None:
    """A line on a terminal that is rewritten as structures are done; nothing in a pipe."""
    stream = sys.stderr
    if not stream.isatty():
        return None

    def show(done: int, total: int, found: Found) -> None:
        end = "\r\x1b[K" if done == total else ""
        stream.write(f"\r{done}/{total} structures, {found.enumerated:,} layouts, {found.feasible:,} fit{end}")
        stream.flush()

    return show
