"""Short ways to ask the ledger, through the same functions that the command line calls."""

from __future__ import annotations

from dataclasses import replace

import meshwright as mw
from meshwright.explain.by_axis import AxisTable
from meshwright.explain.rows import ExplainedRow
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Attention, LayerKind, Model

LLAMA_70B = resolve_model("llama-3.1-70b")
LLAMA_8B = resolve_model("llama-3.1-8b")

TINY = Model(
    name="tiny", vocab_size=8, hidden_size=4, ffn_size=8, layers=(LayerKind(),),
    attention=Attention(num_heads=2, num_kv_heads=2, head_dim=2),
)  # fmt: skip
"""One layer of width 4."""


def with_every_head_its_own(model: Model) -> Model:
    """The same model with multi-head instead of grouped attention."""
    return replace(model, attention=replace(model.attention, num_kv_heads=model.attention.num_heads))


def one_layer(
    model: Model, layout: str, phase: str | None = None, seq: int = 8192, rank: int | None = None, batch: int = 1,
    precision: str | None = None,
) -> tuple[ExplainedRow, ...]:  # fmt: skip
    """The rows of the first decoder layer on one rank."""
    more = {} if precision is None else {"precision": precision}
    return mw.explain(model, cluster="h100-sxm", layout=layout, seq=seq, batch=batch, layer=0, phase=phase, rank=rank, **more).rows


def by_axis(model: Model, layout: str, batch: int, seq: int = 8192, cluster: str = "h100-sxm", precision: str | None = None) -> AxisTable:
    """What each axis costs one rank and step."""
    more = {} if precision is None else {"precision": precision}
    return mw.explain(model, cluster=cluster, layout=layout, seq=seq, batch=batch, by="axis", **more)


def wire_bytes(rows: tuple[ExplainedRow, ...], *axes: str) -> int:
    """What a rank sends in the rows' calls over the axes."""
    return sum(row.wire_bytes * row.times for row in rows if row.axis in axes)


def payload_bytes(rows: tuple[ExplainedRow, ...], *axes: str) -> int:
    """What a rank passes in; a recv passes nothing."""
    return sum(row.payload_bytes * row.times for row in rows if row.axis in axes and row.op != "recv")
