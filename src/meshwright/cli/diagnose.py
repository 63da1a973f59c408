"""``meshwright diagnose``: which rank, which collective, which cause."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import command
from meshwright.cli.output import emit, tell
from meshwright.errors import InputError, Mistake, NoAnswer

if TYPE_CHECKING:
    from meshwright.diagnose.evidence import Evidence
    from meshwright.diagnose.finding import Diagnosis
    from meshwright.job import Job


@command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="FILES...")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path, dir_okay=False), help="What the job was planned to do.")
@click.option(
    "--repro", type=click.Path(path_type=Path, dir_okay=False), help="Write a two-rank script that shows the same fault to this file."
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write a self-contained HTML report to this file.")
@click.option("--what-to-collect", is_flag=True, help="Say how to make the next hang diagnosable, and exit.")
def diagnose(
    files: tuple[Path, ...], plan_file: Path | None, repro: Path | None, output: Path | None, what_to_collect: bool, as_json: bool
) -> None:
    """Say which rank, which collective and which cause.

    FILES are what a job leaves behind, or folders of it: flight-recorder dumps, Kineto traces, torch's and NCCL's logs, py-spy dumps,
    recordings of `prove`. Exit code 1 if a fault is found or the files do not tell, 0 if all is well.
    """
    if what_to_collect:
        from meshwright.diagnose.what_to_collect import WHAT_TO_COLLECT

        emit(as_json, {"what_to_collect": WHAT_TO_COLLECT.splitlines()}, lambda: WHAT_TO_COLLECT.rstrip("\n"))
        return
    if not files:
        raise InputError([Mistake(COMMAND_LINE, "FILES", None, "files or folders", "try `--what-to-collect`", "is missing")])
    from meshwright.diagnose.judge import evidence_of, judge
    from meshwright.render.diagnose import diagnosis_text

    evidence, gathered = evidence_of(files, _plan(plan_file))
    answer = judge(evidence, gathered.notes, gathered.read)
    if repro is not None:
        _write_repro(repro, evidence, answer)
    if output is not None:
        from meshwright.render.diagnose_html import diagnosis_html

        _write(output, diagnosis_html(answer, evidence))
    from meshwright.diagnose.slow.summary import step_json

    emit(as_json, answer.as_json() | step_json(evidence), lambda: diagnosis_text(answer, evidence))
    click.get_current_context().exit(answer.exit_code)


def _plan(path: Path | None) -> Job | None:
    if path is None:
        return None
    from meshwright.job import Asked, resolve

    return resolve(Asked(subject=path, source=COMMAND_LINE))


def _write_repro(path: Path, evidence: Evidence, answer: Diagnosis) -> None:
    """A fault that no script can show is said, and does not keep the diagnosis back."""
    from meshwright.diagnose.repro import script

    try:
        _write(path, script(evidence, answer, path.name))
    except NoAnswer as no:
        tell(f"warning: {no}")


def _write(path: Path, text: str) -> None:
    from meshwright.spec.files import write_text

    write_text(path, text)
    tell(f"wrote {path}")
