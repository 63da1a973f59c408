"""Bytes that one rank sends in a collective, by the algorithm that large messages use.

n is the number of ranks, M the payload as DESIGN section 4.1 defines it (the full tensor for all_gather and
reduce_scatter). Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), sections 3 and 4, whose p is our n and whose n is our M.
"""

from __future__ import annotations

from collections.abc import Callable

from meshwright.arithmetic import Num


def ring_all_reduce_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """2 (n-1)/n M: a reduce_scatter, then an all_gather, n-1 steps of M/n each."""
    return 2 * (ranks - 1) * payload_bytes / ranks


def ring_all_gather_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """(n-1)/n M: n-1 steps, each forwards one shard of M/n. reduce_scatter is its mirror."""
    return (ranks - 1) * payload_bytes / ranks


def direct_all_to_all_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """(n-1)/n M: one of n equal pieces stays; what is sent under uneven routing is the payload's own affair."""
    return (ranks - 1) * payload_bytes / ranks


def broadcast_wire_bytes(payload_bytes: Num, ranks: Num) -> Num:
    """(n-1)/n M on average: a pipelined ring in which every rank but the last passes M on."""
    return (ranks - 1) * payload_bytes / ranks


def wire_bytes(op: str, payload_bytes: Num, ranks: Num) -> Num:
    """Bytes that one rank sends in one call of ``op`` (its name in torch.distributed).

    Raises:
        KeyError: no such collective.
    """
    return _WIRE[op](payload_bytes, ranks)


def wire_formula(op: str) -> str:
    """The formula of ``wire_bytes(op, ...)`` in words, as its docstring has it: ``(n-1)/n M: n-1 steps, ...``."""
    return " ".join((_WIRE[op].__doc__ or "").split())


def _send(payload_bytes: Num, ranks: Num) -> Num:
    """M: all of it, to one peer."""
    return payload_bytes


def _recv(payload_bytes: Num, ranks: Num) -> Num:
    """Nothing: the peer sends."""
    return 0 * payload_bytes


_WIRE: dict[str, Callable[[Num, Num], Num]] = {
    "all_reduce": ring_all_reduce_wire_bytes,
    "all_gather": ring_all_gather_wire_bytes,
    "reduce_scatter": ring_all_gather_wire_bytes,
    "all_to_all": direct_all_to_all_wire_bytes,
    "broadcast": broadcast_wire_bytes,
    "send": _send,
    "recv": _recv,
}
