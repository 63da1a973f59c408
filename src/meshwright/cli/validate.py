"""``meshwright validate``: predicted against measured, for published or own runs."""

from __future__ import annotations

from pathlib import Path

import click

from meshwright.cli.options import command
from meshwright.cli.output import emit


@command()
@click.argument("runs", metavar="RUNS.csv", type=click.Path(path_type=Path))
def validate(runs: Path, as_json: bool) -> None:
    """Compare predictions with measured runs.

    RUNS.csv holds published runs, one column for each degree, or your own: id, model, cluster, layout, seq, batch, and step_s,
    tokens_per_s_per_gpu or memory_gib.
    """
    from meshwright.render.validate import validation_text
    from meshwright.validate.report import validate as judged

    found = judged(runs)
    emit(as_json, found.as_json(), lambda: validation_text(found))
