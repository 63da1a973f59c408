"""``meshwright timeline``: who computes, waits and sends when; what one slow rank does to all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshwright.cli.job import resolved, warn, warn_if_too_large
from meshwright.cli.options import PlanArguments, command, plan_arguments
from meshwright.cli.output import emit, tell

if TYPE_CHECKING:
    from meshwright.timeline.report import TimelineReport


@command()
@plan_arguments("PLAN")
@click.option(
    "--slow",
    multiple=True,
    metavar="WHAT",
    help='Something slow: "stage=3 x1.3", "rank=2 x2" (a pipeline rank), "link=1-2 x4", "op=backward x1.5". Repeatable.',
)
@click.option(
    "--schedule",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Order of the pipeline stages, in torch's CSV format, in place of the layout's schedule.",
)
@click.option(
    "--recording",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Draw a recorded step of this layout (`prove --record`) next to the predicted one.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write a trace for Perfetto to this file.")
@click.option("--svg", type=click.Path(path_type=Path, dir_okay=False), help="Draw the grid to this SVG file.")
def timeline(
    job: PlanArguments,
    slow: tuple[str, ...],
    schedule: Path | None,
    recording: Path | None,
    output: Path | None,
    svg: Path | None,
    as_json: bool,
) -> None:
    """Simulate a step: who computes, waits and sends; what something slow does to all.

    PLAN is a plan.toml, or a model with --cluster and --layout.
    """
    from meshwright.api import timeline_of
    from meshwright.render.timeline import timeline_text

    asked = resolved(job)
    report = timeline_of(asked, slow, "--slow", schedule)
    if not as_json:
        warn(report.warnings)
    warn_if_too_large(asked)
    if recording is not None:
        _beside(report, recording, output, svg, as_json)
        return
    if output is not None:
        from meshwright.render.perfetto import step_trace

        _write(output, json.dumps(step_trace(report)))
    if svg is not None:
        from meshwright.render.grid_svg import svg_grid

        _write(svg, svg_grid(report.step.timeline))
    emit(as_json, report.as_json(), lambda: timeline_text(report))


def _beside(report: TimelineReport, recording: Path, output: Path | None, svg: Path | None, as_json: bool) -> None:
    """Predicted and measured."""
    from meshwright.render.measured import measured_json, measured_svg, measured_text, measured_trace
    from meshwright.timeline.measured import check_comparable, read_measured

    measured = read_measured(recording)
    check_comparable(measured, report.step, str(recording))
    if output is not None:
        _write(output, json.dumps(measured_trace(report, measured)))
    if svg is not None:
        _write(svg, measured_svg(report, measured))
    emit(as_json, {**report.as_json(), "measured": measured_json(measured)}, lambda: measured_text(report, measured))


def _write(path: Path, text: str) -> None:
    from meshwright.spec.files import write_text

    write_text(path, text)
    tell(f"wrote {path}")
