"""The space of layouts: every way to split a model over a number of GPUs, synonyms counted once.

A Column is many layouts that share their structure (what selects a formula: sp, cp kind, pipeline, ZeRO, recompute) and
have arrays for their degrees. It has Layout's attribute names, so that rules, ledger and prices take either.

Counted once: sp at tp = 1; chunks and schedules at pp = 1; the cp kind at cp = 1; replicas at zero = 0, and ZeRO stages where
there is no group to shard over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.spec.layout import CP_KINDS, DEFAULT_ORDER, TWO_CHUNK_SCHEDULES, Layout
from meshwright.spec.model import Model
from meshwright.spec.rules.candidates import divisors
from meshwright.spec.workload import Training

Ints = npt.NDArray[np.int64]

ZEROS = ((0, ""), (1, ""), (2, ""), (3, ""), (3, "local"), (3, "keep"))
SEARCHED_SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")
"""Schedules with a closed form; zb-1p and zb-2p have those of zb-h1 and zb-h2 and are not priced twice."""

RECOMPUTES = ("none", "selective", "full")
DEGREES = ("tp", "cp", "ulysses", "ep", "etp", "dp_replicate", "dp_shard", "mb")

MAX_CP, MAX_MB = 16, 16
"""Bounds of the default space: a longer sequence raises MAX_CP to one rank per 8,192 tokens; larger micro-batches do not
raise the rate of products that are already thousands of tokens tall."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Layouts of one structure on one number of GPUs; attributes as in Layout, degrees as arrays of one length."""

    tp: Ints
    cp: Ints
    ulysses: Ints
    ep: Ints
    etp: Ints
    dp_replicate: Ints
    dp_shard: Ints
    mb: Ints
    pp: int
    sp: bool
    cp_kind: str
    vocab: bool = True
    vocab_pad: int = 1
    schedule: str = "1f1b"
    virtual_stages: int = 1
    stages: tuple[int, ...] | None = None
    zero: int = 0
    zero_variant: str = ""
    recompute: str = "none"
    recompute_layers: int | None = None
    order: str = DEFAULT_ORDER

    def __len__(self) -> int:
        return len(self.tp)

    @property
    def dp(self) -> Ints:
        return self.dp_replicate * self.dp_shard

    @property
    def world_size(self) -> Ints:
        return self.dp_replicate * self.dp_shard * self.cp * self.tp * self.pp

    @property
    def fold(self) -> Ints:
        return self.dp_shard * self.cp * self.tp

    @property
    def edp(self) -> Ints:
        return self.fold // (self.ep * self.etp)

    def micro_batches(self, batch: int) -> Ints:
        return batch // (self.dp * self.mb)

    def take(self, index: Any) -> Column:
        """The layouts at ``index``."""
        return replace(self, **{name: getattr(self, name)[index] for name in DEGREES})

    def layout(self, index: int) -> Layout:
        """One of them."""
        values: dict[str, Any] = {name: getattr(self, name) for name in STRUCTURE}
        values |= {name: int(getattr(self, name)[index]) for name in DEGREES}
        return Layout(**values)


STRUCTURE = tuple(name for name in Column.__dataclass_fields__ if name not in DEGREES)


@dataclass(frozen=True)
class Space:
    """What is searched: a model on a number of GPUs, within bounds."""

    model: Model
    workload: Training
    gpus: int
    vocab_pad: int = 1
    order: str = DEFAULT_ORDER
    max_cp: int = 0
    max_mb: int = MAX_MB

    @property
    def cp_bound(self) -> int:
        return self.max_cp or max(MAX_CP, self.workload.seq // 8192)

    def pipelines(self) -> list[int]:
        """Pipeline degrees."""
        return [pp for pp in divisors(self.gpus) if pp <= self.model.num_layers]

    def structures(self) -> list[tuple[int, str, bool]]:
        """(pipeline degree, cp kind, sp) of every column that may have layouts."""
        kinds = CP_KINDS if self.cp_bound > 1 else ("zigzag",)
        return [(pp, kind, sp) for pp in self.pipelines() for kind in kinds for sp in (False, True)]

    def column(self, pp: int, cp_kind: str, sp: bool) -> Column:
        """All degrees of one structure; without schedule, ZeRO stage and recompute."""
        degrees = self._degrees(pp, cp_kind)
        tp, etp = degrees[0], degrees[4]
        chosen = degrees[:, tp > 1] if sp else degrees[:, etp == tp]
        named: dict[str, Any] = dict(zip(DEGREES, chosen, strict=True))
        return Column(**named, pp=pp, sp=sp, cp_kind=cp_kind, vocab_pad=self.vocab_pad, order=self.order)

    def _degrees(self, pp: int, cp_kind: str) -> Ints:
        """Rows tp, cp, ulysses, ep, etp, dp_replicate, dp_shard, mb; cp = 1 counts for zigzag alone."""
        found: list[tuple[int, ...]] = []
        rest = self.gpus // pp
        for tp in divisors(rest):
            if self.model.attention.num_heads % tp:
                continue
            for cp in divisors(rest // tp):
                if cp > self.cp_bound or (cp == 1 and cp_kind != "zigzag"):
                    continue
                dp = rest // (tp * cp)
                for ulysses in _ulysses(cp, cp_kind):
                    found += [
                        (tp, cp, ulysses, ep, etp, dp // shard, shard, mb)
                        for shard in divisors(dp)
                        for ep, etp in self._experts(tp, cp, shard)
                        for mb in self._micro_batch_sizes(dp)
                    ]
        return np.array(found, dtype=np.int64).reshape(-1, len(DEGREES)).T

    def _experts(self, tp: int, cp: int, shard: int) -> list[tuple[int, int]]:
        """(ep, etp): experts are cut like the dense layers, or not at all."""
        if self.model.moe is None:
            return [(1, tp)]
        fold = tp * cp * shard
        return [
            (ep, etp)
            for etp in sorted({1, tp})
            for ep in divisors(self.model.moe.num_experts)
            if fold % (ep * etp) == 0
        ]  # fmt: skip

    def _micro_batch_sizes(self, dp: int) -> list[int]:
        if self.workload.batch % dp:
            return []
        return [mb for mb in divisors(self.workload.batch // dp) if mb <= self.max_mb]

    def schedules(self, pp: int) -> Iterator[tuple[str, int, tuple[int, ...] | None]]:
        """(schedule, chunks per rank, layers per chunk or None for even ones)."""
        if pp == 1:
            yield "1f1b", 1, None
            return
        for schedule in SEARCHED_SCHEDULES:
            if schedule == "interleaved":
                most = self.model.num_layers // pp
                sizes = [v for v in range(2, most + 1) if self.cut(pp * v, even=True) is not False]
            else:
                sizes = [2 if schedule in TWO_CHUNK_SCHEDULES else 1]
            for v in sizes:
                cut = self.cut(pp * v, even=v > 1)
                if cut is not False:
                    yield schedule, v, cut

    def cut(self, chunks: int, even: bool) -> Any:
        """Layers per chunk: None where they divide; False where they do not.

        Where they do not divide, the first and the last chunk have one layer fewer, for embedding and head (Llama 3, arXiv
        2407.21783, section 3.3.2), or without ``even`` the inner chunks share what is left over.
        """
        layers = self.model.num_layers
        if layers % chunks == 0:
            return None
        if (layers + 2) % chunks == 0 and (layers + 2) // chunks > 1:
            whole = (layers + 2) // chunks
            return (whole - 1, *(whole,) * (chunks - 2), whole - 1)
        if even or chunks > layers:
            return False
        small, extra = divmod(layers, chunks)
        start = (chunks - extra) // 2
        return tuple(small + (start <= index < start + extra) for index in range(chunks))


def _ulysses(cp: int, cp_kind: str) -> list[int]:
    """Ranks that swap heads for sequence: all, none, or for usp every split in between."""
    if cp_kind == "usp":
        return [u for u in divisors(cp) if 1 < u < cp]
    return [cp if cp_kind == "ulysses" else 1]
