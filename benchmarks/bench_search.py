"""How long ``plan`` takes for GPT-3 175B on 4,096 A100, exhaustively: the whole command, start-up included.

Prints layouts enumerated, evaluated and feasible, layouts per second, wall seconds and the largest process's memory, and the
same per core without the second process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

COMMAND = [
    sys.executable, "-m", "meshwright", "plan", "gpt3-175b", "--cluster", "a100-sxm-80g", "--gpus", "4096",
    "--seq", "2048", "--batch", "1536", "--json",
]  # fmt: skip
REPEATS = 3


def main() -> None:
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}")
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        answer = json.loads(subprocess.run(COMMAND, check=True, capture_output=True, text=True).stdout)
        wall_s = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(
            f"{answer['enumerated']:,} enumerated, {answer['evaluated']:,} evaluated, {answer['feasible']:,} feasible: "
            f"{wall_s:.2f} s wall, {cpu_s:.2f} s of processors, {answer['evaluated'] / wall_s:,.0f} layouts/s, "
            f"{answer['evaluated'] / cpu_s:,.0f} layouts/s and core, largest process {after.ru_maxrss / 2**20:.2f} GiB"
        )


if __name__ == "__main__":
    main()
