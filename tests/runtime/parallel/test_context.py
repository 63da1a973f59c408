"""Context-parallel attention against plain softmax attention over the whole sequence, in float64: forward and every gradient.

B = 2, S = 16, N = 4 q heads, K = 2 kv heads, H = 6, Hv = 4 (unequal, as in latent attention); cp = 2 or 4. Per rank
T = B S / cp tokens: q has T N H, the output T N Hv, packed k and v T K (H + Hv) entries of 8 bytes.
"""

import math

import pytest
import torch

from meshwright.runtime.launch import run_ranks
from meshwright.runtime.parallel.attention_block import Rules
from meshwright.runtime.parallel.context import ContextAxes, attention
from meshwright.runtime.parallel.sequence import Positions, held_positions, ring_positions, take
from meshwright.spec.layout import Layout
from runtime.parallel.sharded import close, facts, groups_of, leaf, random, recorded

pytestmark = pytest.mark.dist

B, S, N, K, H, HV = 2, 16, 4, 2, 6, 4
SCALE = H**-0.5


def whole_attention(q, k, v, window=None, slopes=None, sinks=None, drop=None):
    """Softmax over all keys at once: the definition."""
    k, v = (t.repeat_interleave(N // t.shape[2], 2) for t in (k, v))
    scores = torch.einsum("bqnh,bknh->bnqk", q, k) * SCALE
    distance = torch.arange(S)[:, None] - torch.arange(S)[None, :]
    if slopes is not None:
        scores = scores - slopes[:, None, None] * distance
    seen = (distance >= 0) & (distance < (window or S))
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        scores = torch.cat((scores, sinks[None, :, None, None].expand(B, N, S, 1)), -1)
    probabilities = scores.softmax(-1)[..., :S]
    if drop is not None:
        probabilities = probabilities * drop(torch.arange(S), torch.arange(S), torch.arange(N))
    return torch.einsum("bnqk,bknh->bqnh", probabilities, v)


def factors(queries, keys, heads):
    """A dropout that is a function of positions and head."""
    return ((queries[:, None] * 7 + keys[None, :] * 3 + heads[:, None, None]) % 5 != 0).double() / 0.8


def axes_of(layout: Layout) -> tuple[ContextAxes, Positions, object]:
    groups = groups_of(layout)
    ring_size = layout.cp // layout.ulysses
    kind = "ring" if layout.cp_kind == "ulysses" else layout.cp_kind
    positions = tuple(ring_positions(kind, ring_size, rank, S) for rank in range(ring_size))
    axes = ContextAxes(kind=layout.cp_kind, cp=groups["cp"], ring=groups["ring"], ulysses=groups["ulysses"], positions=positions)
    return axes, held_positions(layout, groups["cp"].place, S), groups


def compare(layout: Layout, kv_heads: int = K, window: int | None = None, extras: bool = False) -> list:
    """The layout's attention and its gradients against whole attention; returns what was sent."""
    axes, held, groups = axes_of(layout)
    shapes = [(B, S, N, H), (B, S, kv_heads, H), (B, S, kv_heads, HV)]
    q, k, v = (leaf(random(*shape, seed=seed)) for seed, shape in enumerate(shapes))
    sinks, slopes, drop = (leaf(random(N, seed=7)), torch.tensor([0.5, 0.25, 0.125, 0.0625]).double(), factors) if extras else (None,) * 3
    upstream = random(B, S, N, HV, seed=9)
    expected = whole_attention(q, k, v, window, slopes, sinks, drop)
    expected.backward(upstream)
    local = [leaf(take(t, held)) for t in (q, k, v)]
    local_sinks = None if sinks is None else leaf(sinks)
    rules = Rules(scale=SCALE, window=window, slopes=slopes, drop=drop)

    def forward():
        return attention(*local, axes, rules, local_sinks)

    result, events = recorded(groups, forward, lambda _: take(upstream, held))
    close(result, take(expected, held))
    for mine, full in zip(local, (q, k, v), strict=True):
        close(mine.grad, take(full.grad, held))
    if sinks is not None:
        total = local_sinks.grad
        torch.distributed.all_reduce(total, group=axes.cp.group)
        close(total, sinks.grad)
    return events


def q_bytes(cp: int) -> int:
    return B * S // cp * N * H * 8


def out_bytes(cp: int) -> int:
    return B * S // cp * N * HV * 8


def kv_bytes(cp: int, heads: int = K) -> int:
    return B * S // cp * heads * (H + HV) * 8


def sends(events: list, phase: str) -> list[int]:
    return [event.payload_bytes for event in events if event.op == "send" and event.phase == phase]


@pytest.mark.parametrize("kind", ["ring", "zigzag", "striped"])
@pytest.mark.parametrize("cp", [2, 4])
def test_ring_kinds_send_k_and_v_round_and_their_gradients_home(cp: int, kind: str) -> None:
    for events in run_ranks(compare, cp, (Layout(cp=cp, cp_kind=kind),)):
        assert {event.group.split(".")[0] for event in events} == {"ring"}
        assert sends(events, "forward") == [kv_bytes(cp)] * (cp - 1)
        assert sends(events, "backward_input") == [kv_bytes(cp)] * (2 * cp - 1)  # cp - 1 of k, v and cp of their gradients
        by_tag = [event.tag for event in events if event.op == "send" and event.phase == "backward_input"]
        assert (by_tag.count(0), by_tag.count(1)) == (cp - 1, cp)
        assert len(events) == 2 * (3 * cp - 2)  # each send has its receive


@pytest.mark.parametrize("kind", ["ring", "zigzag", "striped", "allgather"])
def test_window_sinks_alibi_and_dropout(kind: str) -> None:
    run_ranks(compare, 4, (Layout(cp=4, cp_kind=kind), K, 5, True))


def test_ulysses_swaps_q_and_k_v_and_the_output() -> None:
    for events in run_ranks(compare, 2, (Layout(cp=2, cp_kind="ulysses", ulysses=2), K, None, True)):
        swap = ("ulysses", "all_to_all", "", "float64")
        assert facts(events) == [
            ("forward", *swap, q_bytes(2)),
            ("forward", *swap, kv_bytes(2)),
            ("forward", *swap, out_bytes(2)),
            ("backward_input", *swap, out_bytes(2)),
            ("backward_input", *swap, kv_bytes(2)),
            ("backward_input", *swap, q_bytes(2)),
        ]


def test_ulysses_sends_a_kv_head_to_every_rank_that_needs_it() -> None:
    for events in run_ranks(compare, 4, (Layout(cp=4, cp_kind="ulysses", ulysses=4), 2)):
        assert [event.payload_bytes for event in events][:3] == [q_bytes(4), kv_bytes(4, heads=4), out_bytes(4)]
        assert [event.payload_bytes for event in events][3:] == [out_bytes(4), kv_bytes(4, heads=4), q_bytes(4)]


def test_allgather_gathers_k_and_v_twice_and_scatters_their_gradients() -> None:
    for events in run_ranks(compare, 4, (Layout(cp=4, cp_kind="allgather"),)):
        assert facts(events) == [
            ("forward", "cp", "all_gather", "", "float64", kv_bytes(1)),
            ("backward_input", "cp", "all_gather", "", "float64", kv_bytes(1)),
            ("backward_input", "cp", "reduce_scatter", "sum", "float64", kv_bytes(1)),
        ]


def test_usp_is_ulysses_inside_a_ring() -> None:
    for events in run_ranks(compare, 4, (Layout(cp=4, cp_kind="usp", ulysses=2), K, 7, True)):
        assert sorted({event.group.split(".")[0] for event in events}) == ["ring", "ulysses"]
        swaps = [event.payload_bytes for event in events if event.op == "all_to_all"]
        assert swaps[:3] == [q_bytes(4), kv_bytes(4), out_bytes(4)] and len(swaps) == 6
        assert sends(events, "forward") == [kv_bytes(4)]  # half the heads of twice the tokens
        assert sends(events, "backward_input") == [kv_bytes(4)] * 3


def test_one_rank_sends_nothing() -> None:
    assert run_ranks(compare, 1, (Layout(), K, 5, True)) == [[]]


@pytest.mark.parametrize("kind", ["ring", "zigzag", "striped", "ulysses", "allgather", "usp"])
def test_every_token_is_held_exactly_once(kind: str) -> None:
    layout = Layout(cp=4, cp_kind=kind, ulysses={"ulysses": 4, "usp": 2}.get(kind, 1))
    held = [place for rank in range(4) for place in held_positions(layout, rank, S).tolist()]
    assert sorted(held) == list(range(S))


def test_positions_of_each_kind() -> None:
    assert held_positions(Layout(cp=2, cp_kind="zigzag"), 0, 8).tolist() == [0, 1, 6, 7]
    assert held_positions(Layout(cp=2, cp_kind="striped"), 1, 8).tolist() == [1, 3, 5, 7]
    assert held_positions(Layout(cp=2, cp_kind="ring"), 1, 8).tolist() == [4, 5, 6, 7]
    assert held_positions(Layout(cp=4, cp_kind="usp", ulysses=2), 1, 8).tolist() == [6, 7]
    with pytest.raises(ValueError, match="10 tokens does not divide into the 4 chunks"):
        held_positions(Layout(cp=2, cp_kind="zigzag"), 0, 10)


def in_bf16() -> list:
    axes, held, groups = axes_of(Layout(cp=2, cp_kind="zigzag"))
    q, k, v = (leaf(take(random(B, S, K, H, seed=seed), held).bfloat16()) for seed in range(3))
    _, events = recorded(groups, lambda: attention(q, k, v, axes, Rules(scale=SCALE)))
    return events


def test_gradients_travel_in_float32_where_activations_are_bf16() -> None:
    for events in run_ranks(in_bf16, 2):
        assert [(e.tag, e.dtype, e.phase) for e in events if e.op == "send"] == [
            (0, "bf16", "forward"), (0, "bf16", "backward_input"), (1, "float32", "backward_input"), (1, "float32", "backward_input"),
        ]  # fmt: skip
