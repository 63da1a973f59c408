"""The price of a fused dispatch or combine with balanced choices, in closed form, for one group or a column of groups.

One copy of a token for each node with experts of its, handed on over the node's links (traffic.py). M is the payload that the
ledger gives the flat exchange, k copies of each token; ``expected_units`` says how many nodes and ranks a token's k experts lie in.

    inside:  ranks hit x (c_0 - 1)/c_0 / k M        tier i further out:  nodes hit x (n - c_{i-1})/n / k M

Both at once, as in the flat exchange (collectives/price.py). n and c_i as there.
"""

from __future__ import annotations

import numpy as np

from meshwright.arithmetic import Num, is_array, larger, where
from meshwright.collectives.experts.dispatch import CHUNKS
from meshwright.collectives.experts.routing import expected_units
from meshwright.collectives.line import Line, sent
from meshwright.collectives.price import Group, link_s_per_byte
from meshwright.collectives.rates import rate
from meshwright.spec.cluster import Tier
from meshwright.spec.model import Moe


def fused_line(moe: Moe, group: Group, tiers: tuple[Tier, ...]) -> Line:
    """Seconds over the payload of the flat exchange; the model's group limit holds."""
    n, inner = group.ranks, group.members[0]
    curve = rate(tiers[0], True, "all_to_all")
    nodes = n // inner
    latency_s = (n > 1) * curve.launch_s + (inner + nodes - 2) * curve.step_latency_s
    slowest = _hit(moe, n) / moe.top_k * ((inner - 1) / inner) * link_s_per_byte(tiers[0], curve.bandwidth_bytes_per_s, inner - 1)
    rise_s: Num = curve.rise_s
    copies = _hit(moe, nodes) / moe.top_k
    below = inner
    for tier, members in zip(tiers[1:], group.members[1:], strict=True):
        curve = rate(tier, False, CHUNKS)
        here = copies * ((n - below) / n) * link_s_per_byte(tier, curve.bandwidth_bytes_per_s, members / below - 1)
        latency_s = latency_s + (members > below) * (curve.launch_s + curve.step_latency_s)
        rise_s = where(here > slowest, curve.rise_s, rise_s)
        slowest = larger(slowest, here)
        below = members
    return sent(latency_s, slowest, rise_s)


def _hit(moe: Moe, units: Num) -> Num:
    """``expected_units`` for a number or for each of an array, worked out once for each value."""
    if not is_array(units):
        return expected_units(moe, units)
    values, places = np.unique(units, return_inverse=True)
    return np.array([expected_units(moe, int(value)) for value in values])[places].reshape(units.shape)
