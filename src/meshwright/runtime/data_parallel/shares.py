"""What one rank's optimizer updates, whatever ZeRO stage it comes from; the sum over tp, the gradient norm, and AdamW on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from meshwright.runtime import scope
from meshwright.runtime.data_parallel.packing import pack_own, padded_views
from meshwright.runtime.data_parallel.units import ROOT, Held
from meshwright.runtime.groups import Axis
from meshwright.runtime.parallel.comm import all_reduce
from meshwright.spec import names

scope.transparent(__file__)


@dataclass(kw_only=True)
class Share:
    """This rank's rows of one parameter.

    Attributes:
        unit: name of the unit. held: what the rank held before ZeRO.
        weight: the rows [r, ...], updated in place. gradient: of them, complete at the end of a step.
        whole: the parameter before ZeRO, for its shape; first_row: of ``weight`` in it.
        ranks: over which it is cut on dim 0. copies: ranks of the job that hold the same rows (kv_copies not counted in).
    """

    unit: str
    held: Held
    weight: Tensor
    gradient: Tensor
    whole: Tensor
    first_row: int
    ranks: int
    copies: int

    @property
    def name(self) -> str:
        return self.held.name if self.unit == ROOT else f"{self.unit}.{self.held.name}"


def by_unit(shares: Sequence[Share]) -> dict[str, list[Share]]:
    """In order."""
    found: dict[str, list[Share]] = {}
    for share in shares:
        found.setdefault(share.unit, []).append(share)
    return found


def sum_over_tensor_ranks(shares: Sequence[Share], tp: Axis) -> None:
    """Gradients that are summands over tp (norms under sp, norms of heads): one all_reduce per unit, of its packed shards."""
    if tp.group is None:
        return
    for unit, members in by_unit(shares).items():
        partial = [share for share in members if share.held.partial]
        if not partial:
            continue
        wholes, ranks = [share.whole for share in partial], partial[0].ranks
        packed = pack_own([share.gradient for share in partial], wholes, ranks, partial[0].gradient.dtype)
        with scope.at(phase="reduce", module=unit):
            packed = all_reduce(packed, tp)
        for share, total in zip(partial, padded_views(packed, wholes, ranks), strict=True):
            share.gradient.copy_(total[: share.gradient.shape[0]])


def gradient_norm(shares: Sequence[Share], world: Axis) -> Tensor:
    """The Euclidean norm of the model's gradient, a scalar in float32 at least, from one all_reduce of a scalar over all ranks.

    Each rank adds the squares of what it holds, divided by the number of ranks that hold the same: replicas, and tp ranks
    with the same norm or kv head, count once in all.
    """
    dtype = torch.promote_types(shares[0].gradient.dtype, torch.float32) if shares else torch.float32
    total = torch.zeros((), dtype=dtype)
    for share in shares:
        for rows, copies in _by_copies(share):
            total += rows.to(dtype).square().sum() / copies
    with scope.at(phase="reduce", module=names.GRADIENT_NORM):
        total = all_reduce(total, world)
    return total.sqrt()


def _by_copies(share: Share) -> list[tuple[Tensor, int]]:
    """Its gradient's rows by how many ranks have them."""
    held = share.held
    if held.kv_first_row is None:
        return [(share.gradient, share.copies)]
    border = min(max(held.kv_first_row - share.first_row, 0), share.gradient.shape[0])
    return [(share.gradient[:border], share.copies), (share.gradient[border:], share.copies * held.kv_copies)]


class AdamW:
    """torch's AdamW on this rank's shares, with a master copy in ``master_dtype`` where the weights are narrower."""

    def __init__(
        self,
        shares: Sequence[Share],
        master_dtype: torch.dtype,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        self._shares = tuple(shares)
        # ``to`` is the weight itself where the dtype is the same
        self.master = [share.weight.detach().to(master_dtype) for share in self._shares]
        self._torch = torch.optim.AdamW(
            self.master, lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay, foreach=False
        )  # one parameter after the other: the arithmetic does not depend on how they are grouped

    def step(self, scale: Tensor | float = 1.0) -> None:
        """One step with the shares' gradients times ``scale``; writes the weights."""
        with torch.no_grad():
            for master, share in zip(self.master, self._shares, strict=True):
                gradient = share.gradient.to(master.dtype)
                master.grad = gradient if isinstance(scale, float) and scale == 1.0 else gradient * scale
            self._torch.step()
            for master, share in zip(self.master, self._shares, strict=True):
                master.grad = None
                if master.dtype != share.weight.dtype:
                    share.weight.copy_(master)

    def states(self) -> list[dict[str, Tensor]]:
        """torch's state of each share that has been stepped: both moments, and the scalar count of steps."""
        return [self._torch.state[master] for master in self.master if master in self._torch.state]


def clip_scale(norm: Tensor, clip_norm: float | None) -> Tensor | float:
    """Factor on the gradients; torch's clip_grad_norm_ (its 1e-6 included)."""
    return 1.0 if clip_norm is None else (clip_norm / (norm + 1e-6)).clamp(max=1.0)


def count_tokens(count: Tensor, data: Axis) -> Tensor:
    """Labels that count over all data-parallel and cp ranks, from this rank's int64 scalar: one all_reduce."""
    with scope.at(phase="forward", module=names.TOKEN_COUNT):
        return all_reduce(count.clone(), data)
