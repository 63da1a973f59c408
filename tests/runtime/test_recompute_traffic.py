"""What recomputation sends again, and that gradients stay what they were."""

from collections import Counter

import pytest
import torch

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.attention_block import Rules
from meshwright.runtime.parallel.context import ContextAxes, attention
from meshwright.runtime.parallel.linear import column_linear, row_linear
from meshwright.runtime.parallel.sequence import ring_positions
from meshwright.runtime.recompute import recomputed
from meshwright.runtime.scope import in_module
from meshwright.spec.layout import Layout
from runtime.parallel.sharded import close, groups_of, leaf, part, random, recorded

pytestmark = pytest.mark.dist


def block(sp: bool, again: bool) -> tuple:
    """Two column and row pairs, as attention and mlp have them."""
    groups = groups_of(Layout(tp=2, sp=sp))
    axis = groups["tp"]
    x = leaf(part(random(1, 4, 6), axis, 1) if sp else random(1, 4, 6))
    weights = [leaf(part(random(*shape, seed=i), axis, dim)) for i, (shape, dim) in enumerate([((8, 6), 0), ((6, 8), 1)] * 2)]

    def layer(x):
        for name, up, down in (("attention", *weights[:2]), ("mlp", *weights[2:])):
            with in_module(name):
                x = x + row_linear(column_linear(x, up, None, axis, sp).tanh(), down, None, axis, sp)
        return x

    def forward():
        with in_module("layers.0"):
            return recomputed(layer, x) if again else layer(x)

    _, events = recorded(groups, forward)
    return [x.grad, *(w.grad for w in weights)], forward_and_rest(events)


def forward_and_rest(events: list) -> tuple[list[str], Counter[str]]:
    return [event.op for event in events if event.phase == "forward"], Counter(event.op for event in events if event.phase != "forward")


@pytest.mark.parametrize("sp", [False, True])
def test_everything_is_sent_again_but_the_last_reduction(sp: bool) -> None:
    for (plain, once), (again, sent) in zip(run_ranks(block, 2, (sp, False)), run_ranks(block, 2, (sp, True)), strict=True):
        for actual, expected in zip(again, plain, strict=True):
            close(actual, expected)
        forward, backward = once
        assert len(forward) == (4 if sp else 2)
        assert sent == (forward, backward + Counter(forward[:-1]))


def core(kind: str, again: bool) -> tuple:
    layout = Layout(cp=2, cp_kind=kind, ulysses=2 if kind == "ulysses" else 1)
    groups = groups_of(layout)
    ring_size = groups["ring"].size
    positions = tuple(ring_positions("ring" if kind == "ulysses" else kind, ring_size, rank, 8) for rank in range(ring_size))
    axes = ContextAxes(kind=kind, cp=groups["cp"], ring=groups["ring"], ulysses=groups["ulysses"], positions=positions)
    q, k, v = (leaf(random(1, 4, 2, 6, seed=seed)) for seed in range(3))

    def attend(q, k, v):
        return attention(q, k, v, axes, Rules(scale=0.5))

    _, events = recorded(groups, lambda: recomputed(attend, q, k, v) if again else attend(q, k, v), torch.ones_like)
    return [q.grad, k.grad, v.grad], forward_and_rest(events)


def test_the_attention_core_receives_again_and_does_not_send_its_output_again() -> None:
    expected = {"zigzag": ["send", "recv"], "allgather": ["all_gather"], "ulysses": ["all_to_all"] * 2}
    for kind, received in expected.items():
        for (plain, once), (again, sent) in zip(run_ranks(core, 2, (kind, False)), run_ranks(core, 2, (kind, True)), strict=True):
            for actual, gradient in zip(again, plain, strict=True):
                close(actual, gradient)
            forward, backward = once
            assert sent == (forward, backward + Counter(received))
