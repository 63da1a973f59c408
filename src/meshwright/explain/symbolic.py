"""The table by axis in letters, for a model without a layout: the ledger itself, run on numbers that know their formulas.

Sizes are stand-ins of the same structure (letters.py), large enough that every degree divides them; only their letters are
told (LETTERS).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from meshwright.collectives.volume import wire_bytes
from meshwright.explain.by_axis import line_of
from meshwright.explain.letters import Letter, formula, per_unit, quotient
from meshwright.ledger import step
from meshwright.ledger.build import Ledger, build
from meshwright.ledger.data_parallel import Unit
from meshwright.ledger.rows import Row
from meshwright.ledger.stages import LayerBlock
from meshwright.spec.layout import Layout
from meshwright.spec.model import Attention, Mla, Model, Moe
from meshwright.spec.workload import Training

VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    "dp zero=0": ("dp", {"zero": 0}),
    "dp zero=1": ("dp", {"zero": 1}),
    "dp zero=2": ("dp", {"zero": 2}),
    "dp zero=3": ("dp", {"zero": 3}),
    "dp zero=3:keep": ("dp", {"zero": 3, "zero_variant": "keep"}),
    "tp": ("tp", {"sp": False}),
    "tp sp": ("sp", {}),
    "cp:zigzag": ("cp", {}),
    "cp:ulysses": ("cp", {"cp_kind": "ulysses"}),
    "cp:allgather": ("cp", {"cp_kind": "allgather"}),
    "ep": ("ep", {}),
    "pp": ("pp", {"sp": False}),
    "pp sp": ("pp", {}),
    "vocab": ("vocab", {"sp": False}),
    "vocab sp": ("vocab", {}),
}
"""Line of the table -> line of by_axis.py, and the keys of the layout that it is about. sp is on where nothing is said."""

UNIT = Letter("M", 1 << 40)
"""A payload of one."""

CUTS = {
    "dp": "batch", "tp": "N, K, F", "sp": "S (stream)", "cp": "S", "ep": "E", "pp": "L", "vocab": "V",
}  # fmt: skip


LETTERS = {
    "T": "tokens of a micro-batch on one rank, mb S/cp", "m": "micro-batches a step, batch/(dp mb)",
    "Pl": "parameters of its layers that a rank holds before ZeRO, without experts", "Pe": "of its experts",
    "Pr": "of embedding, last norm and head",
    "Pwl, Pwr": "those of Pl, Pr that every tp rank holds whole",
    "fsdp": "dp_shard cp ranks", "edp": "dp_shard cp tp/ep ranks (etp = 1)",
}  # fmt: skip
"""Letters that are no size of the model or degree of the layout."""

OF_EXPERTS = ("Pe", "edp")
"""Those that only a model with experts has."""


@dataclass
class SymbolicCalls:
    """The calls of one collective over the groups of one axis, of ``ranks`` ranks, per rank and step, as numbers with formulas."""

    op: str
    axis: str
    ranks: int
    calls: int = 0
    payload_bytes: int = 0

    @property
    def wire_per_payload(self) -> str:
        """``2 (n-1)/n`` for a group of n."""
        sent = wire_bytes(self.op, UNIT, Letter("n", 2))
        return formula(per_unit(sent, UNIT), one_fraction=True) if sent else "0"

    def as_json(self) -> dict[str, object]:
        return {
            "op": self.op, "axis": self.axis, "ranks": formula(self.ranks), "calls": formula(self.calls),
            "payload_bytes": formula(self.payload_bytes), "wire_per_payload": self.wire_per_payload,
        }  # fmt: skip


@dataclass
class SymbolicLine:
    """One line of the table: what an axis, in one of its variants, cuts and sends."""

    axis: str
    cuts: str
    collectives: dict[tuple[str, str], SymbolicCalls] = field(default_factory=dict)

    def add(self, row: Row, calls: int, payload_bytes: int | None = None) -> None:
        """``calls`` times a row, with another payload where it is told in a letter of its own."""
        op, key = row.op or "", (row.op or "", "cp" if row.axis in ("ring", "ulysses") else row.axis or "")
        if key not in self.collectives:
            self.collectives[key] = SymbolicCalls(*key, row.ranks)
        found = self.collectives[key]
        found.calls += calls * row.times
        if op != "recv":
            found.payload_bytes += calls * row.times * (row.payload_bytes if payload_bytes is None else payload_bytes)

    def as_json(self) -> dict[str, object]:
        return {"axis": self.axis, "cuts": self.cuts, "collectives": [found.as_json() for found in self.collectives.values()]}


@dataclass(frozen=True)
class SymbolicTable:
    """All lines for a model, and what its letters stand for."""

    model: str
    lines: tuple[SymbolicLine, ...]
    letters: dict[str, int]

    def as_json(self) -> dict[str, object]:
        return {"axes": [line.as_json() for line in self.lines], "letters": self.letters}


def explain_symbolically(model: Model) -> SymbolicTable:
    """The table of a model."""
    found = [_line(name, axis, keys, model) for name, (axis, keys) in VARIANTS.items() if model.moe is not None or axis != "ep"]
    return SymbolicTable(model.name, tuple(found), letters_of(model))


def letters_of(model: Model) -> dict[str, int]:
    """The model's sizes by letter."""
    a, moe, dense = model.attention, model.moe, sum(not kind.moe for kind in model.layers)
    sizes = {"D": model.hidden_size, "N": a.num_heads, "V": model.vocab_size, "L": model.num_layers}
    if dense:
        sizes["F"] = model.ffn_size
    if a.mla is not None:
        sizes |= {"Hq": a.mla.qk_head_dim, "Hv": a.mla.v_head_dim, "Ckv": a.mla.kv_lora_rank, "Hr": a.mla.qk_rope_head_dim}
        if a.mla.q_lora_rank is not None:
            sizes["Cq"] = a.mla.q_lora_rank
    else:
        sizes |= {"K": a.num_kv_heads, "H": a.head_dim}
    if moe is not None:
        sizes |= {"E": moe.num_experts, "k": moe.top_k, "Fe": moe.expert_ffn_size}
        if moe.shared_ffn_size:
            sizes["Fs"] = moe.shared_ffn_size
        if dense:
            sizes["Lm"] = model.num_layers - dense
    return sizes


def _line(name: str, axis: str, keys: dict[str, object], model: Model) -> SymbolicLine:
    ledger = _ledger(model, keys)
    line = SymbolicLine(name, CUTS[axis])
    m, stages = Letter("m", 64), Letter("pp", 4)
    if axis == "pp":
        for phase in ("forward", "backward_input"):
            for row in step.boundary(ledger.sizes, phase, 1, 1)[::-1]:
                line.add(row, m)
        return line
    for part, rows, calls in _block_rows(ledger, m, stages):
        for row in rows:
            if row.op and line_of(row, part, ledger.layout) == axis:
                line.add(row, calls)
    for unit, count, first in _units(ledger, stages):
        for row, calls in [*((row, m) for row in (*unit.forward, *unit.backward)), *((row, 1) for row in unit.step)]:
            if row.op and line_of(row, "layers", ledger.layout) == axis:
                _add_unit_row(line, row, unit, calls * count, calls * first)
    return line


def _add_unit_row(line: SymbolicLine, row: Row, unit: Unit, calls: int, once: int) -> None:
    """The parameters of all layers together are one letter: their payloads are counted ``once``, the calls of each layer."""
    of_parameters = row.before is not None and row.before.dims[0].letter == "P"
    root = unit.name == "root"
    for numel, letter in (
        (unit.parts[0].numel, "Pr" if root else "Pl"), (unit.parts[-1].numel, "Pe"), (unit.partial_numel, "Pwr" if root else "Pwl"),
    ):  # fmt: skip
        factor = quotient(row.payload_bytes, numel) if of_parameters else None
        if factor is not None:
            line.add(row, once, factor * Letter(letter, 1 << 40))
            line.add(row, calls - once, 0)
            return
    line.add(row, calls)


def _block_rows(ledger: Ledger, m: int, stages: int) -> Iterator[tuple[str, Iterable[Row], int]]:
    for block, count in _layers(ledger, stages):
        yield "layers", ledger.layer(block).rows(), m * count
    for part in (ledger.embedding, ledger.head):
        yield part.name, part.rows(), m


def _units(ledger: Ledger, stages: int) -> Iterator[tuple[Unit, int, bool]]:
    """(unit, how many a stage has, whether it speaks for all layers' parameters: the last sort does, which has the experts)."""
    layers = list(_layers(ledger, stages))
    for block, count in layers:
        yield ledger.layer_unit(block.kind), count, block == layers[-1][0]
    yield ledger.root(True, True), 1, True


def _layers(ledger: Ledger, stages: int) -> Iterator[tuple[LayerBlock, int]]:
    """A block per sort of layer, dense and with experts, and how many of them a stage has. Windows change no collective."""
    sorts = {kind.moe: kind for kind in sorted(ledger.model.kinds, key=lambda kind: kind.moe)}
    everything, experts = Letter("L", 96) // stages, Letter("Lm", 64) // stages
    counts = {False: everything - experts, True: experts} if len(sorts) == 2 else dict.fromkeys(sorts, everything)
    for moe, kind in sorts.items():
        yield LayerBlock(kind, "none"), counts[moe]


def _ledger(model: Model, keys: dict[str, object]) -> Ledger:
    tp, cp = Letter("tp", 2), Letter("cp", 4)
    words: dict[str, object] = {
        "tp": tp, "sp": True, "cp": cp, "dp_shard": Letter("dp_shard", 8), "mb": Letter("mb", 2), "ep": 1, "etp": 1, **keys,
    }  # fmt: skip
    words["ulysses"] = cp if words.get("cp_kind") == "ulysses" else 1
    if model.moe is not None:
        words |= {"ep": Letter("ep", 4), "etp": 1 if words["sp"] else tp}
    layout = Layout(**words)  # type: ignore[arg-type]
    return build(_stand_in(model), Training(seq=Letter("S", 1 << 14), batch=1 << 10), layout)


def _stand_in(model: Model) -> Model:
    """The same structure with sizes that all degrees divide. The name keeps caches of models apart."""
    a = model.attention
    heads = Letter("N", 64)
    if a.mla is not None:
        mla = _stand_in_mla(a.mla)
        attention: Attention = replace(a, num_heads=heads, num_kv_heads=heads, head_dim=mla.qk_head_dim, mla=mla)
    else:
        attention = replace(a, num_heads=heads, num_kv_heads=Letter("K", 32), head_dim=Letter("H", 128))
    return replace(
        model, name=f"letters of {model.name}", hidden_size=Letter("D", 1 << 13), ffn_size=Letter("F", 1 << 15),
        vocab_size=Letter("V", 1 << 17), attention=attention, moe=_stand_in_moe(model.moe) if model.moe else None, mtp_layers=0,
    )  # fmt: skip


def _stand_in_mla(mla: Mla) -> Mla:
    rank = None if mla.q_lora_rank is None else Letter("Cq", 1 << 10)
    rope = Letter("Hr", 64)
    nope = Letter("Hq", 256) - rope
    return replace(
        mla, q_lora_rank=rank, kv_lora_rank=Letter("Ckv", 1 << 9), qk_rope_head_dim=rope, qk_nope_head_dim=nope,
        v_head_dim=Letter("Hv", 128),
    )  # fmt: skip


def _stand_in_moe(moe: Moe) -> Moe:
    return replace(
        moe, num_experts=Letter("E", 256), top_k=Letter("k", 8), expert_ffn_size=Letter("Fe", 1 << 11),
        shared_ffn_size=Letter("Fs", 1 << 12) if moe.shared_ffn_size else 0,
    )  # fmt: skip
