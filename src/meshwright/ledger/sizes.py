"""Local sizes of every dim under a layout: what turns ``bf16[B/dp, S/cp, D]`` into numbers.

A layout may be one Layout or a column of layouts with numpy arrays for its degrees (search/space.py); the same arithmetic
serves both (DESIGN principle 2).
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache
from typing import Any

from meshwright.arithmetic import Num, ceil_div, larger
from meshwright.notation import Sharded, parse
from meshwright.spec.model import Model
from meshwright.spec.rules import padded_vocab
from meshwright.spec.stack import Stack
from meshwright.spec.workload import Precision, Training
from meshwright.units import DTYPE_BYTES


def padded(size: Num, multiple: Num) -> Num:
    """``size`` rounded up to a multiple."""
    return ceil_div(size, multiple) * multiple


def at_least_one(value: Num) -> Num:
    """max(value, 1)."""
    return larger(value, 1)


class Sizes:
    """Local sizes of one micro-batch on one rank.

    Attributes:
        tokens: T = mb S/cp. stream: the residual stream, stream_tokens: its tokens that a tp rank keeps (T/tp with sp).
        heads, kv_heads: local query and kv heads (one copy each where K < tp). vocab: local vocabulary rows.
        routed_tokens: tokens that this rank routes; expert_rows: token copies that its experts work on (balanced).
        cuts: parts into which a parameter's two dims are cut, by Parameter.cut.
        act: dtype of activations. reduce32: dtype of loss statistics (fp32; float64 in a float64 proof).
    """

    def __init__(self, model: Model, workload: Training, layout: Any, precision: Precision, stack: Stack) -> None:
        self.model, self.workload, self.layout = model, workload, layout
        self.precision, self.stack = precision, stack
        self.act = precision.activation
        self.act_bytes = int(DTYPE_BYTES[self.act])
        self.stat = "float64" if self.act == "float64" else "float32"
        self.stat_bytes = int(DTYPE_BYTES[self.stat])
        a, tp = model.attention, layout.tp
        self.seq_local = workload.seq // layout.cp
        self.tokens = layout.mb * self.seq_local
        self.stream_tokens = self.tokens // tp if layout.sp else self.tokens
        self.heads = a.num_heads // tp
        kv_heads = a.num_heads if a.mla else a.num_kv_heads
        self.kv_heads = at_least_one(kv_heads // tp)
        self.kv_copies = at_least_one(tp // kv_heads)
        self.vocab = padded_vocab(model, layout) // (tp if layout.vocab else 1)
        self.stream_axes = "(cp,tp)" if layout.sp else "cp"
        self.stream = self.tensor(f"B/dp, S/{self.stream_axes}, D")
        self.cuts: dict[str, tuple[Num, Num]] = {
            "whole": (1, 1), "rows": (tp, 1), "columns": (1, tp), "expert_whole": (layout.ep, 1),
            "expert_rows": (layout.ep * layout.etp, 1), "expert_columns": (layout.ep, layout.etp),
        }  # fmt: skip
        self._set_expert_sizes()
        self._local = self._local_sizes()
        self._bytes: dict[int, tuple[Sharded, Num]] = {}  # by id: one object is asked for again and again

    def _set_expert_sizes(self) -> None:
        """Balanced routing: each routed token makes top_k copies, and a rank's experts receive as many as it sent.

        With sp the etp ranks hold different tokens and gather them; without sp they hold the same (DESIGN 4.1).
        """
        moe, layout = self.model.moe, self.layout
        self.routed_tokens = self.stream_tokens
        self.dispatched_rows: Num = 0
        self.expert_rows: Num = 0
        self.local_experts: Num = 0
        if moe is not None:
            self.dispatched_rows = self.routed_tokens * moe.top_k
            self.expert_rows = self.dispatched_rows * layout.etp if layout.sp else self.dispatched_rows
            self.local_experts = moe.num_experts // layout.ep

    def with_expert_rows(self, rows: int) -> Sizes:
        """The same where the router has sent ``rows`` token copies to this rank's experts, and not a balanced share."""
        other = copy(self)
        other.expert_rows = rows
        other._local = {**self._local, "X*etp": rows}
        other._bytes = {}
        return other

    def _local_sizes(self) -> dict[str, Num]:
        """Local size of each dim as it is written in the notation."""
        model, layout, a, tp = self.model, self.layout, self.model.attention, self.layout.tp
        D, F = model.hidden_size, model.ffn_size
        up = 2 if model.gated else 1
        sizes: dict[str, Num] = {
            "B/dp": layout.mb, "S/cp": self.seq_local, "D": D, "F/tp": F // tp, "UF/tp": up * (F // tp),
            "N/tp": self.heads, "K/tp": self.kv_heads, "H": a.head_dim, "Hv": a.v_head_dim,
            "QKV/tp": (self.heads + 2 * self.kv_heads) * a.head_dim, "NH/tp": self.heads * a.v_head_dim,
            "H+Hv": (a.mla.qk_head_dim if a.mla else a.head_dim) + a.v_head_dim,
            "2": 2, "V/tp": self.vocab, "V": self.vocab, "2D": 2 * D, "1": 1,
        }  # fmt: skip
        sizes["S/(cp,tp)"] = self.seq_local // tp if layout.sp else self.seq_local
        sizes["S"] = self.seq_local * layout.cp
        sizes["N/(tp,ulysses)"] = self.heads // layout.ulysses
        sizes["S/ring"] = self.seq_local * layout.ulysses
        sizes["K/(tp,ulysses)"] = at_least_one(self.kv_heads // layout.ulysses)
        if a.mla is not None:
            query = a.mla.q_lora_rank if a.mla.q_lora_rank is not None else D
            sizes["Cq"], sizes["Ckv"] = query, a.mla.kv_lora_rank + a.mla.qk_rope_head_dim
            sizes["C"] = query + a.mla.kv_lora_rank + a.mla.qk_rope_head_dim
            sizes["QH/tp"] = self.heads * a.mla.qk_head_dim
            sizes["KVH/tp"] = self.heads * (a.mla.qk_nope_head_dim + a.mla.v_head_dim)
        if model.moe is not None:
            moe, etp = model.moe, layout.etp
            sizes |= {
                "E": moe.num_experts, "E/ep": self.local_experts,
                "E*etp/(ep,etp)": self.local_experts, "E*etp/ep": self.local_experts * etp,
                "X": self.dispatched_rows, "X*etp/etp": self.dispatched_rows, "X*etp": self.expert_rows,
                "UFe/etp": up * (moe.expert_ffn_size // etp), "Fe/etp": moe.expert_ffn_size // etp,
                "Fs/tp": moe.shared_ffn_size // tp, "UFs/tp": up * (moe.shared_ffn_size // tp),
            }  # fmt: skip
        return sizes

    def tensor(self, dims: str, partial: str = "", dtype: str = "") -> Sharded:
        """A tensor in the activations' dtype (or ``dtype``), from the inside of the notation's brackets."""
        return _tensor(dtype or self.act, dims, partial)

    def bytes(self, tensor: Sharded) -> Num:
        """Bytes that one rank holds."""
        known = self._bytes.get(id(tensor))
        if known is not None:
            return known[1]
        found: Num = int(DTYPE_BYTES[tensor.dtype])
        for dim in tensor.dim_texts:
            found = found * self._local[dim]
        self._bytes[id(tensor)] = tensor, found  # kept, so that its id stays its own
        return found

    def local_shape(self, tensor: Sharded) -> tuple[Num, ...]:
        """The local shape, dim by dim."""
        return tuple(self._local[dim] for dim in tensor.dim_texts)


@lru_cache(maxsize=4096)
def _tensor(dtype: str, dims: str, partial: str) -> Sharded:
    return parse(f"{dtype}[{dims}]{{+{partial}}}" if partial else f"{dtype}[{dims}]")
