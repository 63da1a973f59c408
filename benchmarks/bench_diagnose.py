"""How long does `diagnose` take on the flight-recorder dumps of 512 ranks, 9 of which left none?

Dumps as torch 2.9 writes them for NCCL: tp=8 x dp=64, one rank stops before its last tp collective, all others wait. A dump has the last
N calls. A figure is processor time of reading and judging, the best of 3.

    python benchmarks/bench_diagnose.py [CALLS ...]
"""

import os
import platform
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from dumps import write_tp_dp_job
from meshwright.diagnose.judge import diagnose

MISSING = (3, 60, 61, 100, 200, 300, 400, 500, 511)
CULPRIT = 77
REPEATS = 3


def main() -> None:
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.machine()}")
    for calls in [int(word) for word in sys.argv[1:]] or [20, 200, 2000]:
        with tempfile.TemporaryDirectory() as folder:
            write_tp_dp_job(Path(folder), tp=8, dp=64, calls=calls, culprit=CULPRIT, missing=MISSING)
            size = sum(path.stat().st_size for path in Path(folder).iterdir())
            times = []
            for _ in range(REPEATS):
                began_s = time.process_time()
                headline = diagnose([Path(folder)]).findings[0]
                times.append(time.process_time() - began_s)
        print(f"503 dumps of {calls:>5} calls, {size / 2**20:7.1f} MiB: {min(times):6.2f} s, {headline.title}")
        print(f"      {next(sentence for sentence in headline.evidence if 'leave no file' in sentence)}")


if __name__ == "__main__":
    main()
