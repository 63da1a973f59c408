"""``meshwright watch``: names ranks that fall behind, while the job runs."""

from __future__ import annotations

from pathlib import Path

import click

from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import Count, command
from meshwright.cli.output import emit


@command()
@click.argument("folder", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option("--every", type=Count(), default=5, show_default=True, metavar="SECONDS", help="How often to look.")
@click.option("--patience", type=Count(), metavar="SECONDS", help="How long nothing may move.  [default: three of the ranks' intervals]")
@click.option("--for", "limit", type=Count(), metavar="SECONDS", help="End after this time; without it, at the first rank that is behind.")
def watch(folder: Path, every: int, patience: int | None, limit: int | None, as_json: bool) -> None:
    """Name ranks that fall behind, before any watchdog fires.

    FOLDER is where the ranks write their progress: that of `prove --record`, or of runtime.progress in a program of your own.
    Ends with exit code 1 as soon as a rank is behind, and with 0 if none was until all are done or --for is over.
    """
    from meshwright.diagnose.watch import watch as watched

    found = watched(folder, every, patience or 0.0, limit, COMMAND_LINE)
    otherwise = "all ranks are done" if found.done else "no rank is behind"
    emit(as_json, found.as_json(), lambda: "\n".join(each.message for each in found.behind) or otherwise)
    click.get_current_context().exit(1 if found.behind else 0)
