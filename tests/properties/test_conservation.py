"""What is conserved whatever the layout: bytes of a collective on both sides, layers, parameters, routed tokens."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ledger.columns import WORKLOAD, random_column
from ledger.models import SMALL
from ledger.sums import micro_batches, rank_rows, ranks_per_stage
from meshwright.ledger.build import Ledger, build
from meshwright.ledger.parameters import held_numel, is_expert, local, shard_numel
from meshwright.ledger.rows import Row
from meshwright.spec import names
from meshwright.spec.layout import CP_KINDS, RECOMPUTES, Layout
from meshwright.spec.model import Model
from meshwright.spec.parameters import Parameter, layer_parameters, parameter_count
from meshwright.spec.rules import padded_vocab

MODELS = st.sampled_from(SMALL)
SEEDS = st.integers(0, 2**32)


def random_ledger(model: Model, seed: int) -> Ledger:
    return build(model, WORKLOAD, random_column(model, seed, length=1).layout(0))


def all_rows(ledger: Ledger) -> list[Row]:
    return [row for stage in ledger.stages() for row, _ in rank_rows(stage)]


@given(MODELS, SEEDS)
def test_both_sides_of_a_collective_hold_the_same_bytes(model: Model, seed: int) -> None:
    """A gather makes n shards one whole, a scatter one whole n shards; the payload is the whole. Sums and exchanges keep the size. Units of
    parameters have no tensor of one size and are looked at in test_shards_tile_the_parameters; k and v may be copied on their way (GQA)."""
    ledger = random_ledger(model, seed)
    for row in all_rows(ledger):
        if row.op is None or row.before is None or row.after is None or row.before.dims[0].letter == "P":
            continue
        before, after = ledger.sizes.bytes(row.before), ledger.sizes.bytes(row.after)
        match row.op:
            case "all_gather":
                assert (row.ranks * before, row.payload_bytes) == (after, after)
            case "reduce_scatter":
                assert (before, row.payload_bytes) == (row.ranks * after, before)
            case "all_to_all" if row.axis == "ulysses":
                assert row.payload_bytes == max(before, after)
                assert before == after or "packed" in row.why
            case _:
                assert before == after == row.payload_bytes


@given(MODELS, SEEDS)
def test_every_row_names_a_real_group(model: Model, seed: int) -> None:
    """Groups of one are left out, and a group is no larger than the job."""
    ledger = random_ledger(model, seed)
    for row in all_rows(ledger):
        if row.op is not None:
            assert 1 < row.ranks <= ledger.layout.world_size
            assert row.payload_bytes > 0
            assert row.times >= 1


@given(
    MODELS, st.sampled_from(CP_KINDS), st.sampled_from(RECOMPUTES), st.booleans(),
    st.sampled_from([(0, ""), (1, ""), (2, ""), (3, ""), (3, "local"), (3, "keep")]), st.integers(1, 4),
)  # fmt: skip
def test_all_degrees_one_send_nothing(model: Model, kind: str, recompute: str, vocab: bool, zero: tuple[int, str], mb: int) -> None:
    layout = Layout(cp_kind=kind, recompute=recompute, vocab=vocab, zero=zero[0], zero_variant=zero[1], mb=mb)
    assert [row for row in all_rows(build(model, WORKLOAD, layout)) if row.op is not None] == []


@given(MODELS, SEEDS)
def test_every_layer_is_computed_once_for_every_micro_batch(model: Model, seed: int) -> None:
    """On dualpipe's ranks every layer is there twice, each copy for half of the micro-batches."""
    ledger = random_ledger(model, seed)
    chunks = ledger.pipeline.chunks
    assert [chunk.first_layer for chunk in chunks] == [sum(c.num_layers for c in chunks[:i]) for i in range(len(chunks))]
    seen: Counter[Any] = Counter()
    for stage in ledger.stages():
        for chunk in stage.chunks:
            for index in range(chunk.first_layer, chunk.first_layer + chunk.num_layers):
                seen[index] += micro_batches(ledger)
            seen["embedding"] += micro_batches(ledger) * chunk.first
            seen["head"] += micro_batches(ledger) * chunk.last
    assert seen == dict.fromkeys([*range(model.num_layers), "embedding", "head"], ledger.micro_batches)
    kinds: Counter[Any] = Counter()
    for chunk in chunks:
        for block, count in chunk.layers:
            kinds[block.kind] += count
    assert kinds == Counter(model.layers)


@given(MODELS, SEEDS)
def test_shards_tile_the_parameters(model: Model, seed: int) -> None:
    """All ranks' shards together are the model, once per replica; more only by padding, one row of a parameter on each rank at most, and by
    what several ranks hold whole, which is listed here."""
    ledger = random_ledger(model, seed)
    layout, s = ledger.layout, ledger.sizes
    for kind in model.kinds:
        for parameter in layer_parameters(model, kind):
            group = layout.edp if is_expert(parameter) else layout.dp_shard * layout.cp
            cut = layout.ep * layout.etp if is_expert(parameter) else layout.tp
            held = held_numel([local(parameter, s)])
            assert cut * held == _copies(parameter, model, layout) * parameter.size
            row = parameter.size // parameter.shape[0]
            assert held <= group * shard_numel([local(parameter, s)], group) < held + group * row


def _copies(parameter: Parameter, model: Model, layout: Layout) -> float:
    """How often the tensor- or expert-parallel ranks of a group hold a parameter."""
    if parameter.cut == "whole":
        return layout.tp
    if parameter.cut == "expert_whole":
        return layout.etp
    a = model.attention
    if parameter.cut == "qkv" and layout.tp > a.num_kv_heads:
        return (a.num_heads + 2 * layout.tp) / (a.num_heads + 2 * a.num_kv_heads)
    return 1


@given(MODELS, SEEDS)
def test_all_stages_together_hold_the_model(model: Model, seed: int) -> None:
    """One data-parallel, tensor-parallel rank at tp=1 of every stage: the model, the extra table of a pipeline's end, the padding of the
    vocabulary; dualpipe holds two."""
    drawn = random_column(model, seed, length=1).layout(0)
    layout = Layout(
        pp=drawn.pp, schedule=drawn.schedule, virtual_stages=drawn.virtual_stages, stages=drawn.stages, vocab_pad=drawn.vocab_pad
    )
    ledger = build(model, WORKLOAD, layout)
    total = sum(unit.numel * count for stage in ledger.stages() for unit, count in stage.units())
    padding = (padded_vocab(model, layout) - model.vocab_size) * model.hidden_size
    tables = 1 if model.tied_embeddings else 2
    ends_apart = layout.pp > 1 and layout.schedule not in ("zb-v", "dualpipe", "dualpipe-v")
    tables += ends_apart and (model.tied_embeddings or model.mtp_layers > 0)
    own = parameter_count(model, with_mtp=True)
    extra = (tables - (1 if model.tied_embeddings else 2)) * model.vocab_size * model.hidden_size + tables * padding
    assert total == (own + extra) * (2 if layout.schedule == "dualpipe" and layout.pp > 1 else 1)


@given(MODELS, SEEDS)
def test_dispatch_moves_every_copy_of_every_token(model: Model, seed: int) -> None:
    """T top_k copies of D channels for each dp and cp rank; without sp each tp rank sends all of them, with sp its own share."""
    ledger = random_ledger(model, seed)
    layout, moe = ledger.layout, model.moe
    kind = next((kind for kind in model.kinds if kind.moe), None)
    if moe is None or kind is None or layout.ep == 1:
        return
    rows = [row for row in _moe_rows(ledger) if row.axis == "ep" and row.before is not None and row.before.dtype != "int64"]
    tokens = WORKLOAD.batch * WORKLOAD.seq * (1 if layout.sp else layout.tp)
    for row in rows:
        everywhere = row.payload_bytes * ranks_per_stage(ledger) * ledger.micro_batches
        assert everywhere == tokens * moe.top_k * model.hidden_size * ledger.sizes.act_bytes
    assert [row.name for row in rows] == [names.DISPATCH, names.COMBINE, names.COMBINE, names.DISPATCH]


def _moe_rows(ledger: Ledger) -> list[Row]:
    block = next(block for chunk in ledger.pipeline.chunks for block, _ in chunk.layers if block.kind.moe)
    built = ledger.layer(block)
    return [*built.forward, *built.backward]
