"""Does a curve that was fitted to this machine's own collectives predict sizes that it never saw?

Runs torch's all_reduce, all_gather, reduce_scatter and all_to_all on gloo with 2 and 4 local ranks over payloads from 1 KiB
to 32 MiB, fits each op and group size to every other payload, and prints how far those between are off. Everything within
one run on one machine: CPU times say nothing about GPUs; the question is whether the form of the curve and the fit hold.
Rounds go over all sizes in turn, and a point is its fastest round (of the slowest rank in it): on a machine that does other
work, the median tells of that work. More ranks than cores share a core, so that each group size has its own curve.

    python benchmarks/bench_gloo_fit.py [ROUNDS]
"""

import os
import platform
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from meshwright.calibrate.network import Point, fit, median_error, predicted_s

SIZES = [1 << k for k in range(10, 26)]
RANKS = (2, 4)
ALGORITHMS = {"all_reduce": "ring", "all_gather": "ring", "reduce_scatter": "ring", "all_to_all": "pairwise"}


def points(ranks: int, rounds: int) -> list[Point]:
    """One point per op and size, measured on ``ranks`` local ranks."""
    from meshwright.runtime.bench_collectives import measure
    from meshwright.runtime.launch import run_ranks

    found = run_ranks(measure, ranks, (SIZES, rounds), timeout_s=600)[0]
    return [Point(one.op, one.ranks, one.payload_bytes, one.time_s) for one in found]


def main(rounds: int) -> None:
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, fastest of {rounds} rounds")
    errors: list[float] = []
    for ranks in RANKS:
        measured = points(ranks, rounds)
        for op, algorithm in ALGORITHMS.items():
            mine = [p for p in measured if p.op == op]
            found = fit(mine[::2], algorithm)
            off = [predicted_s(found.curve, algorithm, p) / p.time_s - 1 for p in mine[1::2]]
            errors += off
            curve = found.curve
            print(
                f"{ranks} ranks {op:15} launch {curve.launch_s * 1e6:6.0f} us, {curve.bandwidth_bytes_per_s / 1e9:5.2f} GB/s; "
                f"{len(found.points)} sizes fitted: median error {median_error(found.errors):5.1%}; "
                f"{len(off)} held out: median {median_error(off):5.1%}, worst {max(map(abs, off)):.0%}"
            )
    print(f"all {len(errors)} held-out points: median {median_error(errors):.1%}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
