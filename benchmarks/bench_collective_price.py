"""How long the planner takes to price 100,000 (collective, payload, group) triples at once: the aim is under 50 ms.

python benchmarks/bench_collective_price.py [REPEATS]
"""

import os
import platform
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from meshwright.collectives.price import Group, collective_s
from meshwright.spec.load_cluster import resolve_cluster

TRIPLES = 100_000
OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def main(repeats: int) -> None:
    cluster = resolve_cluster("h100-sxm")
    rng = np.random.default_rng(0)
    each = TRIPLES // len(OPS)
    ranks = 2 ** rng.integers(0, 10, each)
    members = [np.minimum(ranks, tier.size) for tier in cluster.tiers[:-1]]
    group = Group(ranks, (*members, ranks))
    payload_bytes = 2.0 ** rng.uniform(10, 34, each)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        for op in OPS:
            collective_s(op, payload_bytes, group, cluster.tiers)
        times.append(time.perf_counter() - began)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, numpy {np.__version__}")
    print(
        f"{TRIPLES:,} prices on {len(cluster.tiers)} tiers: fastest of {repeats} {min(times) * 1e3:.1f} ms, "
        f"median {np.median(times) * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
