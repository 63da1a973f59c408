"""Proofs on real processes: plans of the catalog, the command line, and what it says when something is missing."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator

import pytest

from meshwright.errors import InputError
from meshwright.prove import program as programs
from meshwright.prove.program import ProofProgram
from meshwright.prove.question import Question
from meshwright.prove.run import prove
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_model import resolve_model
from meshwright.spec.workload import Training
from prove.matrix import Case, cases
from prove.mutants import question_of

PLAN = ("llama-3.1-70b", "--cluster", "h100-sxm", "--gpus", "64", "--seq", "8192", "--batch", "512")


@pytest.fixture(scope="module")
def warm() -> Iterator[ProofProgram]:
    with ProofProgram() as program:
        yield program


@pytest.mark.dist
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "case",
    [
        Case("odd", "tp=4 sp dp=1x2 zero=1 mb=1"),
        Case("odd", "cp=2 dp=1x2 zero=3 mb=1 recompute=full=1"),
        Case("odd experts", "tp=2 sp ep=2 etp=1 dp=1x2 zero=2 mb=1"),
        Case("deepseek-v3", "tp=2 sp ep=2 dp=1x2 zero=3 mb=1"),
    ],
    ids=str,
)
def test_a_layout_proves(case, warm):
    certificate = prove(question_of(case, steps=3), warm)
    assert certificate.passed, certificate.text()
    assert certificate.recorded > 100
    assert certificate.memory is not None and certificate.memory.compared > 0


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_matrix_proves(warm):
    """Every case of matrix.py in float64; the seed differs from case to case."""
    failed = []
    for index, case in enumerate(cases()):
        certificate = prove(question_of(case, steps=3, seed=index + 1), warm)
        if not certificate.passed:
            failed.append(f"{case}\n{certificate.text()}")
    assert not failed, "\n".join(failed)


@pytest.mark.dist
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
def test_traffic_is_exact_in_other_dtypes(dtype, warm):
    model = resolve_model("llama-3.1-8b")
    layout = parse_layout("tp=2 sp dp=1x2 zero=3 mb=1")
    certificate = prove(Question(model=model, workload=Training(seq=64, batch=4), layout=layout, dtype=dtype), warm)
    assert certificate.passed, certificate.text()
    assert certificate.max_grad_error > 1e-9  # it did compute in that dtype


@pytest.mark.dist
@pytest.mark.timeout(300)
def test_the_command_proves_a_plan_of_64_gpus(meshwright):
    result = meshwright("prove", *PLAN, "--layout", "tp=8 sp dp=1x8 zero=3 mb=1", "--json")
    assert result.exit_code == 0, result.output
    values = json.loads(result.output)
    assert (values["verdict"], values["layout"], values["ranks"]) == ("pass", "tp=2 sp dp=1x2 zero=3 mb=1", 4)
    assert values["collectives"]["predicted"] == values["collectives"]["recorded"] > 500
    assert values["plan_hash"].startswith("sha256:")
    assert "tp 8 -> 2" in values["scaled"]


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_dry_run_at_full_size(meshwright):
    result = meshwright(
        "prove", "qwen3-0.6b", "--cluster", "h100-sxm", "--layout", "tp=2 sp cp=2 dp=1x64 zero=3 mb=1", "--seq", "4096", "--batch", "64",
        "--dry", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    values = json.loads(result.output)
    assert values["dry"] and values["verdict"] == "pass"
    assert values["collectives"]["recorded"] > 1000
    assert values["memory"]["compared"] == values["ranks"] * (28 + 2)


def test_without_torch_one_line_names_the_extra(monkeypatch, meshwright):
    monkeypatch.setattr(programs.importlib.util, "find_spec", lambda name: None if name == "torch" else importlib.util.find_spec(name))
    result = meshwright("prove", *PLAN, "--layout", "tp=8 sp dp=1x8 zero=3 mb=1")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == ["error: `torch` is not installed, and a proof runs on it: pip install 'meshwright[runtime]'"]


def test_a_pipeline_is_refused_for_now():
    question = question_of(Case("llama-3.1-8b", "tp=2 pp=2 dp=1 mb=1", m=4))
    with pytest.raises(InputError, match="pipelines do not run yet"):
        prove(question)
