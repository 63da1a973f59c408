"""A trace is read in far less memory than it takes: in a process that may not have more."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from synthetic_trace import LAYERS, write_trace

TRACE_BYTES = 100 << 20
LIMIT_BYTES = 350 << 20
"""Of address space: an interpreter with numpy has 110 MiB (measured), json.load of this trace takes 450 MiB."""

BOUNDED = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))\n"

OURS = (
    BOUNDED
    + """
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.slow.profile import profile_of
from meshwright.recording.kineto import read_kineto
with open(sys.argv[1], "rb") as file:
    trace = read_kineto(file, sys.argv[1])
(split,) = profile_of(Evidence(pieces=(trace,))).splits
print(split.steps, len(trace.compute), len(trace.communications), trace.rank)
"""
)

ALL_AT_ONCE = BOUNDED + "import json\nwith open(sys.argv[1]) as file: json.load(file)\n"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    path = tmp_path_factory.mktemp("trace") / "rank3.json"
    return path, write_trace(path, TRACE_BYTES)


@pytest.mark.dist
@pytest.mark.slow
def test_a_large_trace_is_read_in_little_memory(
    trace: tuple[Path, int], fresh_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    path, steps = trace
    done = fresh_python("-c", OURS, str(path), env=_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(steps), str(steps * 2 * LAYERS * 4), str(steps * 2 * LAYERS), "3"]


@pytest.mark.dist
@pytest.mark.slow
def test_that_memory_is_too_little_for_the_whole(
    trace: tuple[Path, int], fresh_python: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = fresh_python("-c", ALL_AT_ONCE, str(trace[0]), env=_environment())
    assert done.returncode != 0 and "MemoryError" in done.stderr


def _environment() -> dict[str, str]:
    import os

    from shared_data import ROOT

    # Every thread of a linear-algebra library takes address space.
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
