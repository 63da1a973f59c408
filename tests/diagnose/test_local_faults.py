"""Faults made on real gloo ranks: each is diagnosed from the recording, with its call site, and shown again by the script for two ranks."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

import faulty_programs
from faulty_programs import CULPRIT, RANKS, run
from meshwright.diagnose.judge import evidence_of, judge
from meshwright.diagnose.repro import script
from meshwright.runtime.failures import RanksFailed
from meshwright.runtime.launch import run_ranks

pytestmark = [pytest.mark.dist, pytest.mark.slow]

PROGRAM = Path(faulty_programs.__file__).read_text().splitlines()

FAULTS = {
    "op": ("op-mismatch", "dist.broadcast(gradient, 0)"),
    "dtype": ("dtype-mismatch", "dist.all_reduce(gradient)"),
    "shape": ("shape-mismatch", "dist.all_reduce(gradient)"),
    "missing": ("missing-rank", "dist.all_reduce(gradient)"),
    "swap": ("swapped-calls", "dist.all_reduce(other)"),
    "left-out": ("left-out-call", "dist.all_reduce(other)"),
    "splits": ("splits-mismatch", "dist.all_to_all_single"),
}
"""By fault: the rule that must name it, and the line that the evidence must point at."""


def test_a_healthy_run_is_healthy(tmp_path: Path) -> None:
    run_ranks(run, RANKS, ("", str(tmp_path)), timeout_s=60)
    evidence, gathered = evidence_of([tmp_path])
    assert judge(evidence, gathered.notes, gathered.read).verdict == "healthy"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_diagnosed_and_shown_again(fault: str, tmp_path: Path) -> None:
    code, line = FAULTS[fault]
    with contextlib.suppress(RanksFailed):  # some faults stop the job, some pass in silence
        run_ranks(run, RANKS, (fault, str(tmp_path / "recording")), timeout_s=8)
    evidence, gathered = evidence_of([tmp_path / "recording"])
    diagnosis = judge(evidence, gathered.notes, gathered.read)
    headline = diagnosis.findings[0]
    assert (headline.code, headline.ranks, headline.group) == (code, (CULPRIT,), "dp.0"), diagnosis
    numbers = [number for number, text in enumerate(PROGRAM, 1) if line in text]
    assert any(f"faulty_programs.py:{number}" in sentence for number in numbers for sentence in headline.evidence)
    again = tmp_path / "repro.py"
    again.write_text(script(evidence, diagnosis, again.name))
    done = subprocess.run([sys.executable, str(again)], capture_output=True, text=True, timeout=90)
    assert done.returncode == 0 and done.stdout.endswith("reproduced\n"), done.stdout + done.stderr
