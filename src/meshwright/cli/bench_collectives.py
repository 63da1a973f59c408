"""``meshwright bench-collectives``: what ``calibrate`` reads, measured on the machines at hand, as one rank of a torchrun job."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from meshwright.cli.options import Count, Size, command


@command()
@click.option("-o", "--output", metavar="FILE.jsonl", required=True, type=click.Path(path_type=Path), help="Write the points here.")
@click.option("--rounds", type=Count(), default=10, show_default=True, help="Rounds over all sizes; the fastest counts.")
@click.option("--largest", type=Size(), default="512MiB", show_default=True, help="Largest payload.")
def bench_collectives(output: Path, rounds: int, largest: int, as_json: bool) -> None:
    """Measure collectives on the machines at hand, for calibrate.

    Every rank of the job runs it: torchrun --nnodes 2 --nproc-per-node 8 -m meshwright bench-collectives -o bench.jsonl.
    All ops, over all ranks and over those of each node, from 1 KiB to --largest; NCCL where there are GPUs, else gloo.
    """
    from meshwright.errors import InputError, Mistake
    from meshwright.prove.program import require_torch

    require_torch("measuring")
    if "RANK" not in os.environ:
        hint = "start it with torchrun --nproc-per-node 8 -m meshwright bench-collectives -o bench.jsonl"
        raise InputError([Mistake("environment", "RANK", None, "", hint, "is not set: this is one rank of a job that torchrun starts")])
    # Planning never imports torch: the rank becomes the program that does.
    arguments = ["-o", str(output), "--rounds", str(rounds), "--largest", str(largest)] + (["--json"] if as_json else [])
    os.execv(sys.executable, [sys.executable, "-m", "meshwright.runtime.bench_collectives", *arguments])
