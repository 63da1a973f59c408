"""What a measured collective did, as a curve takes it: steps, bytes on the wire, bytes of a rank's own part.

n = ranks, M = payload_bytes, c = ranks of one node. Across nodes a curve is of the tier between them alone, so that it can be
combined with what is inside (collectives/price.py): a ring has c lanes and crosses nodes at one in c of its hops, an all_to_all
sends (n - c)/n M. What the inside adds is ``inside_s``.
"""

from __future__ import annotations

from meshwright.arithmetic import Num, smaller
from meshwright.collectives.algorithms import direct, ring
from meshwright.collectives.price import Group, hops
from meshwright.spec.load_network import CURVES
from meshwright.spec.network import Curve

ALGORITHMS = tuple((op, algorithm) for op, names in CURVES.items() for algorithm in names)
"""Every (op, algorithm) that has a curve."""


def counts(op: str, algorithm: str, payload_bytes: Num, ranks: Num, nodes: Num = 1) -> tuple[Num, Num, Num]:
    """(steps, wire_bytes, own_bytes) of one call; ``nodes`` is 1, or more than 1 in every entry.

    In the switch: M up and the sum down, in one step.
    """
    if not isinstance(nodes, int) or nodes > 1:
        return (*_across(op, payload_bytes, ranks, nodes), 0.0 * payload_bytes)
    own = payload_bytes / ranks
    if algorithm == "in_switch":
        once = smaller(ranks - 1, 1)
        return once, payload_bytes * once, 0.0 * payload_bytes
    if op == "all_to_all":
        return direct.pairwise_steps(ranks), direct.exchange_wire_bytes(payload_bytes, ranks), own
    if op == "all_reduce":
        return ring.all_reduce_steps(ranks), ring.all_reduce_wire_bytes(payload_bytes, ranks), own
    return ring.half_steps(ranks), ring.half_wire_bytes(payload_bytes, ranks), own


def _across(op: str, payload_bytes: Num, ranks: Num, nodes: Num) -> tuple[Num, Num]:
    lanes = ranks // nodes
    if op == "all_to_all":
        return 1 + 0 * ranks, (ranks - lanes) / ranks * payload_bytes
    both = 2 if op == "all_reduce" else 1
    return both * hops(Group(ranks, (lanes, ranks)))[1], both * ring.half_wire_bytes(payload_bytes, ranks) / lanes


def inside_s(op: str, payload_bytes: Num, ranks: Num, nodes: Num, inside: Curve) -> Num:
    """Seconds of a call across nodes that the price adds for the node's own tier: launch, its hops, the local copy."""
    if op == "all_to_all":
        steps = ranks - 1
    else:
        steps = (2 if op == "all_reduce" else 1) * hops(Group(ranks, (ranks // nodes, ranks)))[0]
    return inside.launch_s + steps * inside.step_latency_s + payload_bytes / ranks * inside.copy_s_per_byte
