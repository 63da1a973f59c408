"""New legal layouts in every run: drawn from the commit, so that a failure repeats on it and another commit tries others.

MESHWRIGHT_SAMPLER_SEED=... python -m pytest tests/prove/test_sampler.py -m dist
"""

from __future__ import annotations

import os
import random
import subprocess

import pytest

from proof_cases import Case, random_cases, read_matrix
from proofs import proved
from shared_data import ROOT

NUMBER = 50
SEED_VARIABLE = "MESHWRIGHT_SAMPLER_SEED"


def sampler_seed() -> str:
    """The environment's, else the commit's hash; of a tree without git the version's text, which is better than none."""
    given = os.environ.get(SEED_VARIABLE)
    if given:
        return given
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    from meshwright import __version__

    return found.stdout.strip() or __version__


def sampled(seed: str) -> list[Case]:
    known = set(read_matrix())
    new = (case for case in random_cases(random.Random(seed)) if case not in known)
    return [next(new) for _ in range(NUMBER)]


@pytest.mark.dist
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("tenth", range(10))
def test_layouts_drawn_for_this_commit_prove(tenth: int, warm):
    seed = sampler_seed()
    print(f"{SEED_VARIABLE}={seed}")
    failed = []
    for case in sampled(seed)[tenth::10]:
        certificate = proved(case, warm)
        if not certificate.passed:
            failed.append(f"{SEED_VARIABLE}={seed}\n{case}\n{certificate.text()}")
    assert not failed, "\n".join(failed)


def test_a_seed_draws_the_same_cases_again_and_another_draws_others():
    assert sampled("a") == sampled("a")
    assert len(set(sampled("a")) & set(sampled("b"))) < NUMBER // 5
