"""Embedding and cross-entropy against torch's own on one device, with a vocabulary that tp does not divide.

V = 50 on tp 4 is padded to 52; B = 2, S = 8, D = 6: 768 bytes of stream, T = 16 tokens.
"""

import pytest
import torch
import torch.nn.functional as F

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.linear import column_linear
from meshwright.runtime.parallel.vocabulary import IGNORE_INDEX, cross_entropy, embedding
from meshwright.spec.layout import Layout
from runtime.parallel.sharded import close, facts, groups_of, leaf, part, random, recorded

pytestmark = pytest.mark.dist

V, PADDED, STREAM_BYTES, T = 50, 52, 2 * 8 * 6 * 8, 16


def tokens(seed: int = 3):
    return torch.randint(0, V, (2, 8), generator=torch.Generator().manual_seed(seed))


def padded(weight):
    """Padding rows hold large numbers: they must not be seen anywhere."""
    return torch.cat((weight, torch.full((PADDED - V, weight.shape[1]), 1e3, dtype=weight.dtype)))


def lookup(tp: int, sp: bool) -> list:
    groups = groups_of(Layout(tp=tp, sp=sp))
    axis = groups["tp"]
    table, upstream, ids = leaf(random(V, 6)), random(2, 8, 6, seed=9), tokens()
    expected = F.embedding(ids, table)
    expected.backward(upstream)

    def stream(tensor):
        return part(tensor, axis, 1).contiguous() if sp else tensor

    weight = leaf(part(padded(table.detach()), axis, 0))
    result, events = recorded(groups, lambda: embedding(ids, weight, axis, sp), lambda _: stream(upstream))
    close(result, stream(expected))
    close(weight.grad, part(torch.cat((table.grad, torch.zeros(2, 6, dtype=torch.float64))), axis, 0))
    return events


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("sp", [False, True])
def test_embedding(tp: int, sp: bool) -> None:
    expected = [("forward", "tp", "all_reduce", "sum", "float64", STREAM_BYTES)]
    if sp:
        expected = [
            ("forward", "tp", "reduce_scatter", "sum", "float64", STREAM_BYTES),
            ("backward_input", "tp", "all_gather", "", "float64", STREAM_BYTES),
        ]
    for events in run_ranks(lookup, tp, (tp, sp)):
        assert facts(events) == expected


def head_and_loss(tp: int, sp: bool) -> list:
    groups = groups_of(Layout(tp=tp, sp=sp))
    axis = groups["tp"]
    x, weight, labels = leaf(random(2, 8, 6)), leaf(random(V, 6, seed=1)), tokens(4)
    labels[0, 3:6] = IGNORE_INDEX
    labels[1, -1] = IGNORE_INDEX
    expected = F.cross_entropy(F.linear(x, weight).flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="sum")
    (expected / 12).backward()
    local_x = leaf(part(x, axis, 1) if sp else x)
    local = leaf(part(padded(weight.detach()), axis, 0))

    def forward():
        return cross_entropy(column_linear(local_x, local, None, axis, sp), labels, V, axis) / 12

    result, events = recorded(groups, forward)
    close(result, expected / 12)
    close(local_x.grad, part(x.grad, axis, 1) if sp else x.grad)
    close(local.grad, part(torch.cat((weight.grad, torch.zeros(2, 6, dtype=torch.float64))), axis, 0))
    return events


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("sp", [False, True])
def test_head_and_cross_entropy(tp: int, sp: bool) -> None:
    statistics = [
        ("forward", "tp", "all_reduce", "max", "float64", T * 8),
        ("forward", "tp", "all_reduce", "sum", "float64", 2 * T * 8),
    ]
    gather = ("forward", "tp", "all_gather", "", "float64", STREAM_BYTES)
    expected = [*statistics, ("backward_input", "tp", "all_reduce", "sum", "float64", STREAM_BYTES)]
    if sp:
        expected = [
            gather, *statistics, ("backward_weight", *gather[1:]),
            ("backward_input", "tp", "reduce_scatter", "sum", "float64", STREAM_BYTES),
        ]  # fmt: skip
    for events in run_ranks(head_and_loss, tp, (tp, sp)):
        assert facts(events) == expected


def all_ignored() -> None:
    axis = groups_of(Layout(tp=2))["tp"]
    logits = leaf(random(1, 4, 3))
    loss = cross_entropy(logits, torch.full((1, 4), IGNORE_INDEX), 6, axis)
    loss.backward()
    assert float(loss) == 0.0 and not logits.grad.any()


def test_no_label_that_counts_gives_zero_and_no_gradient() -> None:
    run_ranks(all_ignored, 2)


def in_bf16() -> list:
    groups = groups_of(Layout(tp=2))
    logits = leaf(random(1, 8, 5, dtype=torch.bfloat16, seed=groups["tp"].place))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append((t.dtype, t.numel())) or t, lambda t: t):
        result, events = recorded(groups, lambda: cross_entropy(logits, torch.zeros(1, 8, dtype=torch.int64), 10, groups["tp"]))
    assert result.dtype == torch.float32 and logits.grad.dtype == torch.bfloat16
    assert saved == [(torch.float32, 40)]
    return events


def test_statistics_of_bf16_logits_are_sent_in_float32() -> None:
    for events in run_ranks(in_bf16, 2):
        assert [(op, dtype, size) for _, _, op, _, dtype, size in facts(events)] == [
            ("all_reduce", "float32", 8 * 4),
            ("all_reduce", "float32", 2 * 8 * 4),
        ]
