"""``meshwright watch``: names ranks that fall behind, while the job runs."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import Count, command
from meshwright.cli.output import emit
from meshwright.errors import InputError, Mistake


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
    from meshwright.diagnose.watch import Watcher
    from meshwright.recording.progress import read_progress

    if not read_progress(folder):
        problem = "holds no progress_*.json that can be read" if os.path.isdir(folder) else "is not a folder"
        raise InputError([Mistake(COMMAND_LINE, "FOLDER", str(folder), "a folder that ranks write their progress to", problem=problem)])
    watcher, began_s = Watcher(patience_s=float(patience or 0)), time.monotonic()
    while True:
        now_s = time.monotonic()
        progress = read_progress(folder)
        behind, done = watcher.look(progress, now_s), all(each.ended for each in progress)
        if behind or done or (limit is not None and now_s - began_s >= limit):
            break
        time.sleep(every if limit is None else min(every, max(0.1, limit - (now_s - began_s))))
    answer = {"behind": [each.as_json() for each in behind]}
    emit(as_json, answer, lambda: "\n".join(each.message for each in behind) or ("all ranks are done" if done else "no rank is behind"))
    click.get_current_context().exit(1 if behind else 0)
