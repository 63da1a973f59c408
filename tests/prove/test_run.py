"""Proofs through the command line, dry runs, and what is said when a rank dies or something is missing."""

from __future__ import annotations

import importlib.util
import json
import os
import signal

import pytest

from meshwright.prove import program as programs
from meshwright.spec.load_model import resolve_model
from proof_cases import read_case
from proofs import WithRankProgram, proved

PLAN = ("llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "8192", "--batch", "512")


@pytest.mark.dist
@pytest.mark.timeout(300)
def test_the_command_proves_a_plan_of_64_gpus(meshwright):
    result = meshwright("prove", *PLAN, "--layout", "tp=8 sp dp=1x8 zero=3 mb=1", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert (values["verdict"], values["layout"], values["ranks"]) == ("pass", "tp=2 sp dp=1x2 zero=3 mb=1", 4)
    assert values["collectives"]["predicted"] == values["collectives"]["recorded"] > 500
    assert values["memory"]["compared"] == 4 * 4 + 2  # blocks of ranks; weights and optimizer state of the one stage
    assert values["plan_hash"].startswith("sha256:")
    assert "tp 8 -> 2" in values["scaled"]


def killed_in_the_second_step(job, *reference):
    """Rank 2 is killed between its steps, as by the kernel when memory runs out."""
    import torch.distributed as dist

    from meshwright.runtime.proof_job import run_proof_rank
    from meshwright.runtime.train_step import Training as RankTraining

    right, taken = RankTraining.step, []

    def step(self, batches):
        taken.append(1)
        if dist.get_rank() == 2 and len(taken) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return right(self, batches)

    RankTraining.step = step
    return run_proof_rank(job, *reference)


@pytest.mark.dist
def test_a_killed_rank_gives_a_report():
    with WithRankProgram(killed_in_the_second_step) as program:
        certificate = proved(read_case("llama seq=8 m=1 - tp=2 dp=1x2 mb=1"), program)
    assert not certificate.passed
    first = certificate.failures[0]
    assert (first["rank"], first["kind"]) == (2, "signal")
    assert "SIGKILL" in first["message"]
    assert {mismatch.kind for mismatch in certificate.mismatches} == {"unfinished"}
    assert [(m.step, m.module) for m in certificate.mismatches if m.rank == 2] == [(1, "token_count")]
    text = certificate.text()
    assert "rank 2 of 4 failed first" in text
    assert "Traceback" not in text


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("model", ["qwen3-0.6b", "gpt-oss-20b"])
def test_a_dry_run_at_full_size(model, meshwright):
    experts = "ep=8 etp=1" if model == "gpt-oss-20b" else ""
    layout = f"tp=2 sp cp=2 {experts} dp=1x64 zero=3 mb=1"
    job = ("--cluster", "h100-sxm", "--layout", layout, "--seq", "4096", "--batch", "64")
    result = meshwright("prove", model, *job, "--dry", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.stdout)
    assert values["dry"] and values["verdict"] == "pass"
    assert values["collectives"]["recorded"] > 1000
    assert values["memory"]["compared"] == values["ranks"] * (resolve_model(model).num_layers + 2)


def test_without_torch_one_line_names_the_extra(monkeypatch, meshwright):
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: None if name == "torch" else importlib.util.find_spec(name))
    result = meshwright("prove", *PLAN, "--layout", "tp=8 sp dp=1x8 zero=3 mb=1")
    assert result.exit_code == 2
    errors = result.stderr.partition("error: ")[2].splitlines()  # warnings of the layout come before
    assert errors == ["`torch` is not installed, and a proof runs on it: pip install 'meshwright[runtime]'"]


def test_too_few_ranks_are_refused(meshwright):
    result = meshwright("prove", *PLAN, "--layout", "tp=2 cp=2 dp=2x8 mb=1", "--ranks", "8", "--json")
    assert result.exit_code == 2
    (error,) = json.loads(result.stdout)["errors"]
    assert (error["key"], error["legal"]) == ("ranks", "16 or more")
