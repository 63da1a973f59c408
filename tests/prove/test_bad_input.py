"""What ``prove`` says when it cannot prove: no torch, too few ranks, a rank that is killed on the way."""

from __future__ import annotations

import os
import subprocess

import pytest

from killed_rank import dies_in_its_second_step
from meshwright.errors import InputError
from meshwright.prove.question import Question
from meshwright.prove.run import prove
from meshwright.prove.scale import scale
from meshwright.spec.layout import parse_layout
from meshwright.spec.workload import Training
from proof_cases import read_case
from proofs import WithRankProgram, proved
from sample_inputs import LLAMA_70B

PLAN = ("llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "8192", "--batch", "512")
LAYOUT = "tp=8 sp dp=1x8 zero=3 mb=1"

WITHOUT_TORCH = """
import sys

class Without:
    "A finder that does not find torch."
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, *rest):
        return None if name.partition(".")[0] == "torch" else self.finder.find_spec(name, *rest)

sys.meta_path[:] = map(Without, sys.meta_path)
from meshwright.cli.app import main
sys.argv = ["meshwright", *sys.argv[1:]]
main()
"""


@pytest.mark.dist
@pytest.mark.parametrize("more", [(), ("--dry",)], ids=["proof", "dry run"])
def test_without_torch_one_line_names_the_extra(fresh_python, more):
    done = fresh_python("-c", WITHOUT_TORCH, "prove", *PLAN, "--layout", LAYOUT, *more)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "torch" in line and "pip install 'meshwright[runtime]'" in line


@pytest.mark.dist
def test_a_rank_that_is_killed_on_the_way_is_named_and_nothing_stays_behind():
    before = _processes()
    case = read_case("llama seq=8 m=1 - tp=2 dp=1x2 zero=1 mb=1")
    certificate = proved(case, WithRankProgram(dies_in_its_second_step))
    assert not certificate.passed
    first = certificate.failures[0]
    assert (first["rank"], first["kind"]) == (1, "signal") and "SIGKILL" in first["message"]
    text = certificate.text()
    assert "rank 1 of 4 failed first" in text and "killed by SIGKILL" in text
    assert "Traceback" not in text
    assert {mismatch.kind for mismatch in certificate.mismatches} == {"unfinished"}, "what was done until then is as predicted"
    reached = [mismatch for mismatch in certificate.mismatches if mismatch.rank == 1]
    assert [(mismatch.step, mismatch.module) for mismatch in reached] == [(1, "token_count")]
    # the fork server stays warm for the next proof; its ranks are gone
    assert len(_processes() - before) <= 1


def _processes() -> set[str]:
    """Fork servers and their ranks under this process, by process id; ranks share the server's command line."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout.splitlines()
    table = {pid: (parent, args) for pid, parent, args in (line.split(maxsplit=2) for line in listed if len(line.split(maxsplit=2)) == 3)}

    def is_ours(pid: str) -> bool:
        while pid in table:
            if pid == str(os.getpid()):
                return True
            pid = table[pid][0]
        return False

    return {pid for pid, (_, args) in table.items() if "fork_server" in args and is_ours(pid)}


def test_a_layout_that_needs_more_ranks_is_scaled():
    scaled = scale(LLAMA_70B, Training(seq=8192, batch=512), parse_layout(LAYOUT), 8)
    assert scaled.layout.world_size <= 8 and "tp 8 -> 2" in scaled.changes


def test_where_scaling_is_not_possible_the_reason_and_the_number_are_told():
    layout = parse_layout("tp=8 sp cp=8:usp=4x2 dp=2x4 zero=1 mb=1")
    with pytest.raises(InputError) as refused:
        prove(Question(model=LLAMA_70B, workload=Training(seq=8192, batch=512), layout=layout, ranks=4))
    (mistake,) = refused.value.mistakes
    assert mistake.key == "ranks" and mistake.value == 4
    needed = int(mistake.legal.split()[0])
    assert needed > 4
    assert scale(LLAMA_70B, Training(seq=8192, batch=512), layout, needed).layout.world_size == needed, "the number that is told is enough"
