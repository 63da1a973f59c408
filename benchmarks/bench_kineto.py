"""Seconds and peak memory of reading a Kineto trace of 1 GB and splitting its step: the aim is under 2 GiB.

    python benchmarks/bench_kineto.py [GIGABYTES]

The trace is made up (tests/synthetic_trace.py), in a temporary folder; ``json.load`` of the same bytes is not run: it takes some five
times the file's size.
"""

import os
import platform
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from meshwright.diagnose.judge import diagnose
from synthetic_trace import write_trace


def main(gigabytes: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank3.json"
        steps = write_trace(path, int(gigabytes * 1e9))
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {platform.python_version()}")
        began, before = time.perf_counter(), time.process_time()
        answer = diagnose([path])
        wall, cpu = time.perf_counter() - began, time.process_time() - before
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(
            f"{path.stat().st_size / 1e9:.2f} GB, {steps} steps: {wall:.1f} s ({cpu:.1f} s of CPU, "
            f"{path.stat().st_size / cpu / 1e6:.0f} MB/s), peak {peak / (1 << 20):.0f} MiB; verdict {answer.verdict}"
        )


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
