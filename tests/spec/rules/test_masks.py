"""One formula, two callers: the rules over arrays of degrees equal the rules on each layout."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from meshwright.spec.layout import DEFAULT_ORDER, Layout
from meshwright.spec.rules import RULES, Case, legal
from meshwright.spec.workload import Training
from sample_inputs import MODELS

DEGREES = ("tp", "cp", "ulysses", "pp", "virtual_stages", "ep", "etp", "dp_replicate", "dp_shard", "mb")

STRUCTURES = [
    {"sp": False, "cp_kind": "zigzag", "schedule": "1f1b", "recompute": "none"},
    {"sp": True, "cp_kind": "ulysses", "schedule": "interleaved", "recompute": "full"},
    {"sp": True, "cp_kind": "usp", "schedule": "dualpipe", "recompute": "selective"},
    {"sp": False, "cp_kind": "allgather", "schedule": "dualpipe-v", "recompute": "none"},
    {"sp": True, "cp_kind": "ring", "schedule": "zb-v", "recompute": "none"},
]


def degrees_at_random(structure, count, seed):
    """Degrees of many layouts that are well-formed for one structure, legal or not."""
    rng = np.random.default_rng(seed)
    pick = {name: rng.choice([1, 1, 1, 2, 3, 4, 5, 8, 16], count) for name in ("tp", "cp", "pp", "dp_shard", "dp_replicate", "mb", "ep")}
    pick["etp"] = np.where(rng.random(count) < 0.7, pick["tp"], rng.choice([1, 2], count))
    pick["ulysses"] = {"ulysses": pick["cp"], "usp": np.gcd(pick["cp"], 2)}.get(structure["cp_kind"], np.ones(count, int))
    v = {"interleaved": rng.choice([2, 4, 5], count), "dualpipe-v": np.full(count, 2), "zb-v": np.full(count, 2)}
    pick["virtual_stages"] = v.get(structure["schedule"], np.ones(count, int))
    return pick


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: f"{s['cp_kind']}-{s['schedule']}")
def test_masks_equal_single_layouts(model, structure):
    count = 3000
    degrees = degrees_at_random(structure, count, seed=len(model.name))
    words = {"vocab": True, "vocab_pad": 1, "stages": None, "zero": 1, "zero_variant": "", "recompute_layers": None, "order": DEFAULT_ORDER}
    model = replace(model, layers=model.layers[:48])  # DeepSeek's 61 layers fit no pipeline evenly
    workload = Training(seq=6144 if model.positions == "rope" else 960, batch=480)
    many = Case(model=model, workload=workload, layout=SimpleNamespace(**degrees, **structure, **words), gpus=None)
    masks = {rule.code: np.broadcast_to(rule.holds(many), count) for rule in RULES}
    every = np.broadcast_to(legal(many), count)
    for i in range(0, count, 10):
        layout = Layout(**{name: int(degrees[name][i]) for name in DEGREES}, **structure, **words)
        one = Case(model=model, workload=workload, layout=layout)
        for rule in RULES:
            assert bool(masks[rule.code][i]) == bool(rule.holds(one)), (rule.code, layout)
        assert bool(every[i]) == all(rule.holds(one) for rule in RULES)
    assert 0 < every.sum() < count, "the sample must have both kinds"
