"""``meshwright validate``: predicted against measured, for published or own runs."""

from __future__ import annotations

from pathlib import Path

import click

from meshwright.cli.options import Count, Index, command
from meshwright.cli.output import emit


@command()
@click.argument("runs", metavar="RUNS.csv", type=click.Path(path_type=Path))
@click.option("--calibrate", type=Count(), metavar="K", help="Fit K runs of each source, and judge the rest once more.")
@click.option("--seed", type=Index(), default=0, show_default=True, help="Chooses the K runs.")
@click.option("--without-source", is_flag=True, help="Price each source with constants that were fitted without its runs.")
def validate(runs: Path, calibrate: int | None, seed: int, without_source: bool, as_json: bool) -> None:
    """Compare predictions with measured runs.

    RUNS.csv holds published runs, one column for each degree, or your own: id, model, cluster, layout, seq, batch, and step_s,
    tokens_per_s_per_gpu or memory_gib; also gpus, precision, stack and source, if you like.
    """
    from meshwright.render.validate import validation_text
    from meshwright.validate.report import validate as judged

    found = judged(runs, calibrate or 0, seed, without_source)
    emit(as_json, found.as_json(), lambda: validation_text(found))
