"""Layouts and families, one proof each: numbers within 1e-12 of one device, traffic and saved bytes exactly the ledger's.

matrix.txt says what is proved; every fourth case is proved in float32 and bf16 as well.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.prove.certificate import Certificate
from meshwright.prove.compare import BOUNDS
from meshwright.spec.layout import CP_KINDS, parse_layout
from meshwright.spec.rules import check
from meshwright.spec.workload import Training
from proof_cases import Case, pairs, random_cases, read_case, read_matrix
from proof_models import MODELS
from proofs import proved

CASES = read_matrix()
QUARTER = CASES[::4]


@pytest.mark.dist
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_proves_in_float64(case: Case, warm):
    certificate = proved(case, warm)
    assert certificate.bound == 1e-12
    assert certificate.passed, certificate.text()
    assert_all_was_compared(certificate, case)


@pytest.mark.dist
@pytest.mark.parametrize("dtype", ["float32", "bf16"])
@pytest.mark.parametrize("case", QUARTER, ids=str)
def test_traffic_is_exact_in_other_dtypes(case: Case, dtype: str, warm):
    """Numbers are statistical here: BOUNDS are far above what rounding does (1e-4 against 6e-8, 0.25 against 4e-3), because AdamW divides
    small differences by small moments, and far below what a fault does, which is of the order of 1."""
    certificate = proved(case, warm, dtype, steps=2)
    assert certificate.passed, certificate.text()
    assert_all_was_compared(certificate, case)
    assert certificate.bound == BOUNDS[dtype]
    assert certificate.max_grad_error > 1e-9, "it did compute in that dtype"


def assert_all_was_compared(certificate: Certificate, case: Case) -> None:
    """A comparison of nothing would pass, too. Blocks: layers, embedding and head, and what multi-token prediction adds."""
    assert certificate.ranks == case.layout.world_size
    assert certificate.recorded == certificate.predicted >= certificate.ranks * certificate.steps * 2
    assert certificate.memory.compared >= certificate.ranks * (case.model.num_layers + 2)


def test_the_matrix_is_as_large_as_it_says():
    ranks = Counter(case.layout.world_size for case in CASES)
    assert len(CASES) == len(set(CASES)) >= 200
    assert ranks[8] >= 60
    assert set(ranks) == {2, 3, 4, 6, 8}


def test_every_case_is_legal_and_reads_back():
    for case in CASES:
        check(case.model, case.workload, case.layout)
        assert read_case(str(case)) == case


def test_every_value_of_every_key_is_in_it():
    found = {word for case in CASES for word in case.features}
    expected = {*MODELS, "sp=True", "sp=False", "vocab=False", "padded=True", "kv copies=True", "dropout=True", "recompute=full some"}
    expected |= {f"tp={tp}" for tp in (1, 2, 3, 4, 6, 8)} | {f"cp={cp}:{kind}" for cp in (2, 3, 4) for kind in CP_KINDS}
    expected |= {f"zero={zero}" for zero in ("0", "1", "2", "3", "3local", "3keep")} | {f"ep={ep}" for ep in (1, 2, 4, 8)}
    expected |= {f"dp={shape}" for shape in ("1x1", "1xn", "nx1", "nxn")} | {"etp=1", "etp=2", "etp=4", "etp=tp", "expert copies=True"}
    expected |= {"recompute=none whole", "recompute=selective whole", "recompute=full whole", "order=other", "mb=n", "m=1", "m=n"}
    assert expected <= found


def test_nearly_all_pairs_of_features_meet():
    """Those of 2,000 legal cases that were drawn otherwise than the matrix was."""
    import random

    others = random_cases(random.Random(99))
    possible = set().union(*(pairs(next(others)) for _ in range(2000)))
    covered = set().union(*map(pairs, CASES))
    assert len(possible & covered) / len(possible) > 0.95


@pytest.mark.dist
def test_ranks_and_experts_without_tokens_are_in_it():
    """By the routing of one device: in some case a rank's experts get no token at all from anybody, in some micro-batch."""
    from meshwright.runtime.proof_job import ProofJob, run_reference

    case = next(case for case in CASES if case.family == "sparse" and case.layout.ep >= 4)
    loads = run_reference(ProofJob(model=case.model, workload=case.workload, layout=case.layout)).loads
    of_ranks = loads.sum(-2).reshape(*loads.shape[:3], case.layout.ep, -1).sum(-1)
    assert np.any(loads.sum(-2) == 0), "an expert without tokens"
    assert np.any(of_ranks == 0), "a rank without tokens"
    assert of_ranks.max() > 2 * of_ranks.mean(), "loads are far from even"


REFUSED = {
    "a sequence that zigzag cannot cut": ("llama", 18, "cp=2 dp=1 mb=1 tp=1", "cp"),
    "a sequence that sp cannot cut": ("llama", 9, "tp=2 sp dp=1 mb=1", "sp"),
    "6 heads on tp 4": ("gpt2", 8, "tp=4 dp=1 mb=1", "tp"),
    "3 kv heads on tp 2": ("llama_6_heads", 8, "tp=2 dp=1 mb=1", "tp"),
    "more positions than there are": ("gpt2", 128, "dp=2 mb=1", "seq"),
    "experts that ep does not divide": ("mixtral", 8, "ep=3 dp=1x3 mb=1", "ep"),
    "ulysses over too few heads": ("gpt2", 8, "cp=4:ulysses dp=1 mb=1", "cp"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_evenly_is_refused(name: str):
    family, seq, text, key = REFUSED[name]
    layout = parse_layout(text)
    with pytest.raises(InputError) as refused:
        check(MODELS[family], Training(seq=seq, batch=layout.dp * layout.mb), layout)
    assert key in {mistake.key for mistake in refused.value.mistakes}
