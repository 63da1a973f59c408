"""How long a full event timeline takes: GPT-style 530B on 35 stages, interleaved*3, 280 micro-batches, and the largest schedules.

Printed: seconds to build the lists, to find who waits for whom (once for a schedule), to simulate them, and to find the waits and the
critical path; best of five.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable

import numpy as np

from meshwright.schedule import build, check, with_communication
from meshwright.schedule.order_graph import OrderGraph
from meshwright.timeline import critical_path, simulate, uniform_costs, waits

REPEATS = 5


def best(work: Callable[[], object]) -> float:
    found = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, numpy {np.__version__}, best of {REPEATS}")
    head = f"{'schedule':>12} {'p':>3} {'v':>2} {'m':>4} {'events':>8}"
    print(f"{head} {'build s':>8} {'order s':>8} {'simulate s':>11} {'waits, path s':>14}")
    for name, p, v, m in [
        ("interleaved", 35, 3, 280), ("1f1b", 64, 1, 512), ("interleaved", 64, 4, 512), ("zb-2p", 64, 1, 512),
        ("zb-v", 64, 2, 512), ("dualpipe", 64, 1, 512), ("dualpipe-v", 64, 2, 512),
    ]:  # fmt: skip
        schedule = build(name, p, v, m)
        costs = uniform_costs(schedule, transfer_s=0.01)
        timeline = simulate(schedule, costs)
        built, simulated = best(lambda: build(name, p, v, m)), best(lambda: simulate(schedule, costs))  # noqa: B023
        ordered = best(lambda: OrderGraph(schedule))  # noqa: B023
        explained = best(lambda: (waits(timeline), critical_path(timeline)))  # noqa: B023
        print(f"{name:>12} {p:>3} {v:>2} {m:>4} {len(timeline):>8} {built:>8.3f} {ordered:>8.3f} {simulated:>11.3f} {explained:>14.3f}")
    schedule = build("interleaved", 35, 3, 280)
    communicated = with_communication(schedule)
    print(f"35 x 3 x 280: messages {best(lambda: with_communication(schedule)):.3f} s, check {best(lambda: check(communicated)):.3f} s")


if __name__ == "__main__":
    main()
