"""``meshwright calibrate``: a cluster file from measured collectives, or a stack file from measured runs: the file says which."""

from __future__ import annotations

from pathlib import Path

import click

from meshwright.cli.mistakes import COMMAND_LINE
from meshwright.cli.options import Count, OneOf, command
from meshwright.cli.output import emit, tell

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("-o", "--output", metavar="FILE.toml", required=True, type=click.Path(path_type=Path), help="Write it here.")
@click.option("--cluster", metavar="C", help="What was measured: a catalog name or a TOML file.  [default: told by the device's name]")
@click.option("--op", type=OneOf("OP", OPS), help="The collective, for output that does not name it.")
@click.option("--ranks", type=Count(), help="Ranks, for output that does not list them.")
def calibrate(files: tuple[Path, ...], output: Path, cluster: str | None, op: str | None, ranks: int | None, as_json: bool) -> None:
    """Fit the network of a cluster to measured collectives, or a stack to measured runs.

    FILE is what nccl-tests or rccl-tests printed, also several runs after each other, or bench.jsonl of `bench-collectives`:
    what is written can be used as --cluster. Or it is one RUNS.csv, as for `validate`: what is written can be used as --stack.
    """
    from meshwright.api_tools import calibrated
    from meshwright.calibrate.measurement import Calibration
    from meshwright.render.calibrate import calibrated_stack_text, calibrated_text

    found = calibrated(files, output, cluster, op, ranks, COMMAND_LINE, "--output")
    tell(f"wrote {output}")
    if isinstance(found, Calibration):
        emit(as_json, {"cluster": str(output), **found.as_json()}, lambda: calibrated_text(found))
    else:
        emit(as_json, {"stack": str(output), **found.as_json()}, lambda: calibrated_stack_text(found))
