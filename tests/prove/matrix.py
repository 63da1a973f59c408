"""The layouts and families that are proved: every value of every key of a layout, alone and together, on 2 to 8 ranks.

A model of the catalog is scaled to tiny sizes by the proof itself, so that a case is a name, a layout and a number of micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import InputError
from meshwright.spec.layout import parse_layout
from meshwright.spec.load_model import resolve_model
from meshwright.spec.model import Attention, LayerKind, Model, Moe
from meshwright.spec.rules import check
from meshwright.spec.workload import Training

DENSE = ("llama-3.1-8b", "qwen3-32b", "gpt3-175b", "bloom-176b", "odd")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "kimi-k2", "gpt-oss-120b", "odd experts")

OWN = {
    # Nothing divides well: vocabulary 50 on tp 4, 12 heads of which 2 kv heads on tp 4, biases, windows, tied head.
    "odd": Model(
        name="odd", vocab_size=50, hidden_size=30, ffn_size=36, layers=(LayerKind(window=3), LayerKind(), LayerKind(window=50)), mlp_bias=True,
        attention=Attention(num_heads=12, num_kv_heads=2, head_dim=6, qkv_bias=True, out_bias=True, qk_norm=True), tied_embeddings=True,
    ),
    # 8 experts and 1 choice of few tokens: experts and ranks without tokens.
    "odd experts": Model(
        name="odd experts", vocab_size=50, hidden_size=30, ffn_size=36, layers=(LayerKind(moe=True), LayerKind(), LayerKind(moe=True)),
        attention=Attention(num_heads=4, num_kv_heads=1, head_dim=6),
        moe=Moe(num_experts=8, top_k=1, expert_ffn_size=12, shared_ffn_size=20, aux_loss_coefficient=0.02),
    ),
}  # fmt: skip

SMALL = (
    "dp=2 mb=1", "dp=2 zero=1 mb=2", "dp=3 zero=2 mb=1", "dp=3 zero=3 mb=1", "dp=2x2 zero=0 mb=1", "dp=2x2 zero=3:keep mb=1",
    "tp=2 dp=1 mb=1", "tp=2 sp dp=1 mb=2", "tp=4 dp=1 mb=1", "tp=4 sp dp=1 mb=1", "tp=2 vocab=off dp=1x2 mb=1", "tp=2 sp vocab=off dp=1 mb=1",
    "tp=2 vocab_pad=7 dp=1 mb=1", "cp=2 dp=1 mb=1", "cp=2:ring dp=1 mb=2", "cp=3:striped dp=1 mb=1", "cp=2:ulysses dp=1 mb=1",
    "cp=4:ulysses dp=1 mb=1", "cp=2:allgather dp=1 mb=1", "cp=4:usp=2x2 dp=1 mb=1", "tp=2 sp dp=1x2 zero=1 mb=1 recompute=full",
    "tp=2 dp=1x2 zero=3 mb=1 recompute=selective", "cp=2 dp=1x2 zero=3:local mb=1 recompute=full=1",
)  # fmt: skip
WIDE = (
    "tp=2 sp cp=2 dp=1x2 zero=1 mb=1", "tp=2 cp=2:ulysses dp=1x2 zero=2 mb=1", "tp=4 sp dp=1x2 zero=3 mb=1", "tp=4 dp=2 zero=0 mb=1",
    "tp=2 sp dp=2x2 zero=3 mb=1 recompute=full", "cp=2 dp=2x2 zero=2 mb=1 recompute=selective", "tp=2 cp=4:usp=2x2 dp=1 mb=1",
    "tp=2 sp cp=4:ring dp=1 mb=1", "cp=4:allgather dp=1x2 zero=3:keep mb=1", "tp=2 dp=1x4 zero=1 mb=1 order=dp-tp-cp-ep-pp",
    "tp=2 sp cp=2:striped dp=1x2 zero=3:local mb=2",
)  # fmt: skip
SMALL_EXPERTS = (
    "dp=2 mb=1", "ep=2 dp=1x2 mb=1", "ep=2 dp=1x2 zero=3 mb=1", "ep=2 dp=1x4 zero=1 mb=1", "ep=4 dp=1x4 zero=2 mb=1", "ep=2 dp=2x2 zero=1 mb=1",
    "tp=2 dp=1 mb=1", "tp=2 sp dp=1 mb=1", "tp=2 sp ep=2 etp=1 dp=1 mb=1", "tp=2 sp ep=2 dp=1x2 mb=1", "tp=2 ep=2 dp=1x2 zero=2 mb=1",
    "tp=2 sp ep=4 etp=1 dp=1x2 zero=3 mb=1", "cp=2 ep=2 dp=1 mb=1", "cp=2:ulysses ep=2 dp=1x2 zero=1 mb=1", "cp=2:allgather ep=4 dp=1x2 mb=1",
    "tp=2 sp ep=2 dp=1x2 zero=3 mb=1 recompute=full", "ep=2 dp=1x2 mb=2 recompute=selective",
)  # fmt: skip
WIDE_EXPERTS = (
    "tp=2 sp cp=2 ep=2 dp=1x2 zero=1 mb=1", "tp=2 sp ep=4 etp=1 dp=2x2 zero=3 mb=1", "ep=4 dp=2x4 zero=3 mb=1", "ep=2 dp=2x4 zero=2 mb=1",
    "tp=4 sp ep=2 dp=1x2 mb=1", "tp=4 sp ep=2 etp=2 dp=1x2 zero=1 mb=1", "tp=2 ep=4 dp=1x4 zero=3:keep mb=1", "tp=2 cp=2 ep=2 dp=1x2 zero=3 mb=1",
    "cp=4:usp=2x2 ep=8 dp=1x2 zero=1 mb=1", "tp=2 sp ep=2 dp=1x4 zero=3:local mb=1 recompute=full", "tp=2 sp ep=8 etp=1 dp=1x4 zero=2 mb=1",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """name: of the catalog or of OWN. m: micro-batches of one rank."""

    name: str
    layout: str
    m: int = 2

    def __str__(self) -> str:
        return f"{self.name}: {self.layout}"


def model_of(name: str) -> Model:
    return OWN[name] if name in OWN else resolve_model(name)


def workload_of(case: Case, seq: int = 24) -> Training:
    layout = parse_layout(case.layout)
    return Training(seq=seq, batch=case.m * layout.dp * layout.mb)


def cases() -> list[Case]:
    """Every legal pair."""
    return [case for case in _all() if _legal(case)]


def _all() -> Iterator[Case]:
    for name in DENSE:
        yield from (Case(name, text) for text in SMALL + WIDE)
    for name in EXPERTS:
        yield from (Case(name, text) for text in SMALL_EXPERTS + WIDE_EXPERTS)


def _legal(case: Case) -> bool:
    """Whether the true model may be cut so."""
    try:
        check(model_of(case.name), workload_of(case), parse_layout(case.layout))
    except InputError:
        return False
    return True
