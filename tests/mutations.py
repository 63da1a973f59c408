"""Faults that are put into the runtime on purpose, each as a program of a rank: patch one thing, then prove as usual.

Faults of this kind have cost people weeks: wrong numbers and no error. What each must be found by is in prove/test_mutations.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from meshwright.runtime import proof_rank, train_step
from meshwright.runtime.data_parallel import buckets, fully_sharded, shares
from meshwright.runtime.parallel import attention, context, experts, layer, linear, model, moe_block, norm, setting
from meshwright.runtime.parallel.comm import Pending
from meshwright.runtime.proof_job import Experts, ProofJob, RankResult, run_proof_rank

RankProgram = Callable[[ProofJob, int, Experts], RankResult]


def mutation(patch: Callable[[], None]) -> RankProgram:
    @wraps(patch)
    def run(job: ProofJob, seed: int, experts: Experts) -> RankResult:
        patch()
        return run_proof_rank(job, seed, experts)

    return run


def _not_sent(x: torch.Tensor, *axis: Any) -> Pending:
    return Pending(None, lambda: x)


@mutation
def row_sum_dropped() -> None:
    linear.reduce_from = lambda x, axis: x


@mutation
def column_gradient_sum_dropped() -> None:
    linear.start_all_reduce = _not_sent


@mutation
def gradient_scaled() -> None:
    right = linear.weight_gradient
    linear.weight_gradient = lambda grad, x: right(grad, x) * (1 + 1e-10)


@mutation
def embedding_gradient_forgets_the_first_token() -> None:
    right = model.embedding

    def embedding(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        x = right(ids, *rest)
        return torch.cat((x[:, :1].detach(), x[:, 1:]), 1)

    model.embedding = embedding


@mutation
def rotary_position_shifted() -> None:
    """On the second cp rank."""
    right = setting.rope_tables

    def tables(model: Any, positions: torch.Tensor, *rest: Any) -> Any:
        return right(model, positions + int(dist.get_rank() == 1), *rest)

    setting.rope_tables = tables


@mutation
def mask_position_shifted() -> None:
    """Every block sees the keys of its own time, too: one token of the future."""
    right = context.add_block
    context.add_block = lambda merged, q, k, v, queries, keys, rules: right(merged, q, k, v, type(queries)(queries.places + 1), keys, rules)


@mutation
def kv_copies_not_summed() -> None:
    buckets.Buckets._sum_kv_copies = lambda *args: None


@mutation
def kv_copies_not_summed_under_fsdp() -> None:
    attention.sum_over_copies = lambda parameters, first_row, kv: tuple(parameters)


@mutation
def norm_counts_kv_copies_twice() -> None:
    shares._by_copies = lambda share: [(share.gradient, share.copies)]


@mutation
def norm_counts_replicas_twice() -> None:
    right = shares._by_copies
    shares._by_copies = lambda share: [(rows, 1) for rows, _ in right(share)]


@mutation
def norms_not_summed_over_tp() -> None:
    buckets.sum_over_tensor_ranks = lambda *args: None


@mutation
def mean_of_means() -> None:
    """Each rank divides by its own count times the number of ranks, as if all had as many tokens."""
    right = train_step.count_tokens

    def count(own: torch.Tensor, axis: Any) -> torch.Tensor:
        right(own, axis)
        return (own * axis.size).clamp(min=1)

    train_step.count_tokens = count


@mutation
def key_gradients_do_not_travel_back() -> None:
    def gradients(state: Any, packed: torch.Tensor, width: Any, ring: Any, positions: Any, rules: Any) -> torch.Tensor:
        parts = {}
        for source, block in context._travel(packed, ring):
            parts[source] = torch.cat(context.block_gradients(state, *block.split(width, -1), positions[source], rules), -1)
        return parts[ring.place]

    context._ring_gradients = gradients


@mutation
def ulysses_heads_out_of_order() -> None:
    right = context.swap_out
    context.swap_out = lambda x, ulysses: right(x, ulysses).roll(1, 2)


@mutation
def gathered_keys_not_scattered() -> None:
    """allgather: each rank keeps the gradient of its own keys that it computed itself."""
    context.reduce_scatter = lambda x, axis, dim: x.chunk(axis.size, dim)[axis.place].contiguous()


@mutation
def stale_expert_splits() -> None:
    """Every layer after the first uses the first one's plan."""
    right, kept = moe_block.plan_dispatch, []

    def plan(*args: Any) -> experts.Dispatch:
        kept.append(right(*args))
        return kept[0]

    moe_block.plan_dispatch = plan


@mutation
def combined_without_sorting_back() -> None:
    right = moe_block.combine
    moe_block.combine = lambda copies, weights, dispatch: right(copies, weights, replace(dispatch, order=dispatch.order.sort().values))


@mutation
def balance_loss_of_own_tokens() -> None:
    moe_block.sum_balance_statistics = lambda statistics, *axes: statistics


@mutation
def loads_not_summed() -> None:
    """The selection bias moves by this rank's loads alone."""
    train_step.all_reduce = lambda x, axis: x


@mutation
def padded_vocabulary_not_masked() -> None:
    right = model.cross_entropy
    model.cross_entropy = lambda logits, labels, size, tp: right(logits, labels, logits.shape[-1] * tp.size, tp)


@mutation
def updated_weights_not_gathered() -> None:
    buckets.Buckets.publish_weights = lambda self: None


@mutation
def gathered_weights_thrown_away() -> None:
    buckets.unpack = lambda *args: None


@mutation
def gradients_kept_from_the_last_step() -> None:
    right = buckets.Buckets.begin_micro_batch

    def begin(self: Any, first: bool, last: bool) -> None:
        right(self, first and not any(part.total.any() for bucket in self._buckets for part in bucket.parts), last)

    buckets.Buckets.begin_micro_batch = begin


@mutation
def replicas_not_summed() -> None:
    right = fully_sharded.FullySharded.begin_micro_batch

    def begin(self: Any, first: bool, last: bool) -> None:
        right(self, first, last)
        self._root.set_requires_all_reduce(False)

    fully_sharded.FullySharded.begin_micro_batch = begin


def _units_swapped(self: Any) -> None:
    self._order = [*self._order[:-1][::-1], self._order[-1]]


@mutation
def units_sent_in_another_order() -> None:
    right = buckets.Buckets.__init__

    def init(self: Any, *args: Any) -> None:
        right(self, *args)
        _units_swapped(self)

    buckets.Buckets.__init__ = init


@mutation
def units_swapped_on_one_rank() -> None:
    """The shapes are the same, so gloo sums one layer's gradients into another's and says nothing."""
    right = buckets.Buckets.__init__

    def init(self: Any, *args: Any) -> None:
        right(self, *args)
        if dist.get_rank() == 0:
            _units_swapped(self)

    buckets.Buckets.__init__ = init


@mutation
def reduced_in_float32() -> None:
    right = buckets.start_all_reduce

    def start(x: torch.Tensor, axis: Any) -> Pending:
        pending = right(x.float(), axis)
        return Pending(pending.work, lambda: pending.result().to(x.dtype))

    buckets.start_all_reduce = start


@mutation
def reduced_over_the_wrong_group() -> None:
    right = buckets.Buckets.__init__

    def init(self: Any, units: Any, groups: Any, *rest: Any) -> None:
        right(self, units, groups, *rest)
        for bucket in self._buckets:
            for part in bucket.parts:
                part.copies = groups["dp_shard"]

    buckets.Buckets.__init__ = init


@mutation
def dropout_by_local_position() -> None:
    """Every sequence-parallel rank draws the mask of the first one's tokens."""
    setting.MicroBatch.token_index = lambda self, positions, seq: (
        (self.first_sequence + torch.arange(len(self.tokens)))[:, None] * seq + torch.arange(len(positions))
    )


@mutation
def dropout_repeats_every_step() -> None:
    right = proof_rank.Dropout
    proof_rank.Dropout = lambda rate, seed, step: right(rate, seed, 0)


@mutation
def slopes_of_the_first_heads() -> None:
    """ALiBi: every tp rank takes the slopes of the first one's heads."""
    right = setting.make_setting

    def make(model: Any, layout: Any, *rest: Any) -> Any:
        made = right(model, layout, *rest)
        return replace(made, slopes=setting.alibi_slopes(model.attention.num_heads).chunk(layout.tp)[0])

    train_step.make_setting = make


@mutation
def bias_added_on_every_rank() -> None:
    """The row-parallel bias before the sum instead of after it."""

    def row_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tp: Any, sp: bool = False) -> torch.Tensor:
        out = linear._Product.apply(x, weight, None)
        return linear.reduce_from(out if bias is None else out + bias, tp)

    attention.row_linear = row_linear


@mutation
def norm_keeps_more_than_it_needs() -> None:
    """Right numbers, right traffic, more memory: eager operations keep their intermediate tensors."""

    def rms_norm(x: torch.Tensor, weights: Any, module: str, model: Any) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + model.norm_eps)
        return weights[f"{module}.weight"] * (x * scale)

    layer.norm = rms_norm


@mutation
def one_rank_runs_another_norm_eps() -> None:
    right = norm.rms_norm
    norm.rms_norm = lambda x, weight, eps: right(x, weight, eps * (1 + dist.get_rank()))
