"""What a rule is, and what it looks at.

A rule's condition is one function of a ``Case``. It is called with one layout, to explain a mistake, and with a million
at once, to mask what the search need not price: degrees are then numpy integer arrays under the same names. So
conditions use ``& | ==`` and arithmetic only, never ``and or not``; ``implies`` reads as it says.

Letters (DESIGN section 3): L layers, N query heads, K kv heads, E experts, S sequence, p stages, v chunks per
rank, m micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from meshwright.mesh import Ints, Mesh, tier_of_legs
from meshwright.spec.cluster import Cluster, Tier
from meshwright.spec.layout import Layout
from meshwright.spec.model import Model
from meshwright.spec.workload import Decode, Prefill, Training

Bools: TypeAlias = Any
"""A bool, or a numpy array of bools."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The four inputs together.

    ``layout`` is a Layout, or (cast to it) an object with its attributes whose degrees are arrays and whose words
    (kinds, schedule, zero, flags) are single values.

    ``gpus`` is what the user has; None where only the layout says.
    """

    model: Model
    workload: Training | Prefill | Decode
    layout: Layout
    cluster: Cluster | None = None
    gpus: int | None = None

    @property
    def num_heads(self) -> int:
        """N."""
        return self.model.attention.num_heads

    @property
    def num_kv_heads(self) -> int:
        """K."""
        return kv_heads(self.model)

    @property
    def sequence(self) -> int:
        """Tokens of one sequence in this step, for sp and cp to cut; 0, which everything divides, when decoding one token."""
        return 0 if isinstance(self.workload, Decode) else self.workload.seq

    @property
    def micro_batches(self) -> Ints:
        """m, rounded down where the batch does not divide (the rule ``batch`` tells that)."""
        return self.workload.batch // (self.layout.dp_replicate * self.layout.dp_shard * self.layout.mb)

    @property
    def chunks(self) -> Ints:
        """p v: pieces of the decoder that the pipeline places."""
        return self.layout.pp * self.layout.virtual_stages

    @property
    def has_dense_layers(self) -> bool:
        return any(not kind.moe for kind in self.model.kinds)

    @property
    def num_experts(self) -> int:
        """E; 0, which every degree divides, without experts."""
        return self.model.moe.num_experts if self.model.moe else 0

    @property
    def expert_ffn_size(self) -> int:
        """F of one expert, 0 without experts."""
        return self.model.moe.expert_ffn_size if self.model.moe else 0

    @property
    def shared_ffn_size(self) -> int:
        """F of the shared experts, 0 without them."""
        return self.model.moe.shared_ffn_size if self.model.moe else 0

    @cached_property
    def mesh(self) -> Mesh:
        """For one layout only."""
        return Mesh(self.layout, kv_heads=self.num_kv_heads)

    @property
    def tier_sizes(self) -> tuple[int | None, ...]:
        return tuple(tier.size for tier in self.cluster.tiers) if self.cluster else ()

    def tier(self, axis: str) -> Tier | None:
        """The tier that ``axis`` spans (one layout only); None without a cluster or for an axis of degree 1."""
        legs = self.mesh.legs(axis)
        if self.cluster is None or not legs:
            return None
        return self.cluster.tiers[int(tier_of_legs(legs, self.mesh.world_size, self.tier_sizes))]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A hard rule: a layout for which ``holds`` is false is refused.

    Attributes:
        code: its stable name, ``tp-heads``.
        key: the key of the layout, workload or cluster that is blamed.
        holds: the condition; its docstring is the reason.
        problem: what is wrong, after "`tp` = 5", in words with the numbers that decide.
        hint: what to do about it.
        legal: which values would do; None to try the candidates of ``key`` (candidates.py).
        value: what to show of the layout; None for the key's own value.
    """

    code: str
    key: str
    holds: Callable[[Case], Bools]
    problem: Callable[[Case], str]
    hint: Callable[[Case], str] = field(default=lambda case: "")
    legal: Callable[[Case], str] | None = None
    value: Callable[[Case], object] | None = None


@dataclass(frozen=True, kw_only=True)
class LayoutWarning:
    """A layout that runs and is hardly what was meant: what is silly about it, and what to do instead."""

    code: str
    message: str
    remedy: str

    def as_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


@dataclass(frozen=True, kw_only=True)
class Caution:
    """A soft rule: where ``applies`` is true (one layout only), the user is told ``message`` and ``remedy``."""

    code: str
    applies: Callable[[Case], bool]
    message: Callable[[Case], str]
    remedy: Callable[[Case], str]

    def warning(self, case: Case) -> LayoutWarning:
        return LayoutWarning(code=self.code, message=self.message(case), remedy=self.remedy(case))


def kv_heads(model: Model) -> int:
    """K: heads of k and v after projection, which latent attention (MLA) has as many of as of q."""
    return model.attention.num_heads if model.attention.mla else model.attention.num_kv_heads


def implies(condition: Bools, consequence: Bools) -> Bools:
    """False only where ``condition`` is true and ``consequence`` is not; elementwise for arrays."""
    return (condition == 0) | consequence
