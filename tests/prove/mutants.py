"""Faults planted in a copy of the package: one line of the runtime changed, and what a proof must then say."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshwright.prove.certificate import Certificate
from meshwright.prove.program import ProofProgram
from meshwright.prove.question import Question
from meshwright.prove.run import prove
from meshwright.spec.layout import parse_layout
from prove.matrix import Case, model_of, workload_of
from shared_data import ROOT


@dataclass(frozen=True)
class Mutant:
    """One change: ``old`` becomes ``new`` in ``file``; under ``case`` the certificate must name every one of ``told``.

    told: words of the certificate's text; "numbers" for an error of numbers with traffic as predicted.
    """

    name: str
    file: str
    old: str
    new: str
    case: Case
    told: tuple[str, ...]


@contextmanager
def mutated(mutant: Mutant, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[ProofProgram]:
    """A proof program that runs the changed copy; this process goes on with the true package."""
    copy = folder / "src"
    shutil.copytree(ROOT / "src", copy, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / "meshwright" / "runtime" / mutant.file
    text = file.read_text()
    assert text.count(mutant.old) == 1, f"{mutant.file} has {text.count(mutant.old)} times {mutant.old!r}"
    file.write_text(text.replace(mutant.old, mutant.new))
    patch.syspath_prepend(str(copy))  # what the program's process gets as its path
    with ProofProgram() as program:
        yield program


def question_of(case: Case, **changes: object) -> Question:
    return Question(
        model=model_of(case.name), workload=workload_of(case), layout=parse_layout(case.layout), **{"steps": 2, "seed": 1, **changes}  # type: ignore[arg-type]
    )


def prove_mutant(mutant: Mutant, folder: Path, patch: pytest.MonkeyPatch, **changes: object) -> Certificate:
    with mutated(mutant, folder, patch) as program:
        return prove(question_of(mutant.case, **changes), program)


PRODUCT = """        ctx.save_for_backward(x, weight)
        return F.linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
"""
TP, TP4, CP = Case("odd", "tp=2 dp=1x2 mb=1"), Case("odd", "tp=4 sp dp=1 mb=1"), Case("odd", "cp=2 dp=1 mb=1")
MUTANTS = [
    Mutant(
        "a dropped all_reduce", "parallel/linear.py", "else reduce_from(summand, tp)", "else summand", TP,
        ("missing", "layers.0.attention.out", "row-parallel output is a partial sum over tp"),
    ),
    Mutant(
        "a dropped maximum, which numbers do not show", "parallel/vocabulary.py",
        "all_reduce(work.amax(-1), tp, dist.ReduceOp.MAX)", "work.amax(-1) * 0", TP, ("missing", "loss", "maximum of the logits"),
    ),
    Mutant(
        "two swapped collectives", "parallel/context.py",
        "        q = swap_in(q, axes.ulysses)\n        k, v = _swap_in_packed(k, v, axes.ulysses)\n",
        "        k, v = _swap_in_packed(k, v, axes.ulysses)\n        q = swap_in(q, axes.ulysses)\n", Case("odd", "cp=2:ulysses dp=1 mb=1"),
        ("bytes", "layers.0.attention.core", "the cut moves"),
    ),
    Mutant("a loss scaled by 1e-9", "train_step.py", "objective = total / count", "objective = total / count * (1 + 1e-9)", TP, ("numbers",)),
    Mutant(
        "positions shifted on the second cp rank", "parallel/setting.py", "rope_tables(model, positions.tensor, seq, dtype)",
        "rope_tables(model, positions.tensor + cp.place, seq, dtype)", CP, ("numbers",),
    ),
    Mutant(
        "copies of kv heads not summed", "data_parallel/buckets.py", "if kv.group is None or not copies:", "if True:", TP4,
        ("missing", "attention.qkv", "the copies of a head sum their gradients"),
    ),
    Mutant(
        "a norm counted once for each copy", "data_parallel/shares.py", "total += rows.to(dtype).square().sum() / copies",
        "total += rows.to(dtype).square().sum()", TP, ("numbers", "norm"),
    ),
    Mutant("padded columns not masked", "parallel/vocabulary.py", "if first + num_columns > vocab_size:", "if False:", TP4, ("numbers",)),
    Mutant(
        "norms not summed over tp", "data_parallel/shares.py", "    if tp.group is None:\n        return\n", "    return\n", TP4,
        ("missing", "layers.0", "each tp rank saw other tokens"),
    ),
    Mutant(
        "FSDP2's mean instead of its sum", "data_parallel/fully_sharded.py", "module.set_gradient_divide_factor(1.0)", "pass",
        Case("odd", "dp=3 zero=3 mb=1"), ("numbers",),
    ),
    Mutant(
        "a maximum in place of a sum", "data_parallel/shares.py", "return all_reduce(count.clone(), data)",
        "return all_reduce(count.clone(), data, torch.distributed.ReduceOp.MAX)", TP, ("reduce_op", "token_count", "by max instead of sum"),
    ),
    Mutant(
        "one expert's rows at another's place", "parallel/experts.py", "order = flat.argsort(stable=True)", "order = flat.argsort(stable=True).flip(0)",
        Case("odd experts", "ep=2 dp=1x2 mb=1"), ("numbers",),
    ),
    Mutant(
        "statistics of the balance loss not summed over cp", "parallel/experts.py", "total = reduce_from(statistics, cp)", "total = statistics",
        Case("odd experts", "cp=2 ep=2 dp=1 mb=1"), ("missing", "moe.router", "balance loss"),
    ),
    Mutant(
        "a gather too many", "parallel/linear.py", "        whole = all_gather(x, tp, SEQUENCE_DIM) if sp else x\n",
        "        whole = all_gather(x, tp, SEQUENCE_DIM) if sp else x\n        if sp:\n            all_gather(x, tp, SEQUENCE_DIM)\n", TP4,
        ("extra", "layers.0.attention.qkv"),
    ),
    Mutant(
        "an activation kept that need not be", "parallel/linear.py", PRODUCT, PRODUCT.replace("(x, weight)\n        return", "(x, weight, x.clone())\n"
        "        return").replace("x, weight = ctx", "x, weight, _ = ctx"), TP, ("rank 0, layers.0: predicted",),
    ),
]  # fmt: skip
