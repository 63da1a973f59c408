"""The time of one collective inside one tier: latency, bytes, and how efficiency grows with the message.

    time_s = launch_s + steps * step_latency_s + wire_bytes / (bandwidth * efficiency(wire_bytes)) + own_bytes / copy_bandwidth
    efficiency(w) = 1 / (1 + sqrt(half_bytes / w))

Why a square root: a payload sent through h hops in k pieces takes (h + k - 1)(a + w / (k B)). With the best k that is
h' a + w/B + 2 sqrt(h' a w / B), h' = h - 1 (Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication:
theory, practice, and experience", Concurrency and Computation 19 (2007), section 5, on pipelining). So half_bytes = 4 h' a B,
and a plain latency-bandwidth line, which has no such term, misses measured medium sizes by 30 % and more.

The last term is the part that a rank keeps (1/n of the payload), which an out-of-place collective copies locally.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.arithmetic import Num, root, where


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Constants of one (op, algorithm) in one tier.

    Attributes:
        launch_s: fixed cost of the call; step_latency_s: of each further step.
        bandwidth_bytes_per_s: per direction and GPU that very large messages approach.
        half_bytes: wire bytes at which half of it is reached.
        copy_bandwidth_bytes_per_s: of the local copy of a rank's own part; None where nothing is copied.
    """

    launch_s: float
    step_latency_s: float
    bandwidth_bytes_per_s: float
    half_bytes: float
    copy_bandwidth_bytes_per_s: float | None = None

    @property
    def copy_s_per_byte(self) -> float:
        """Seconds for each byte of a rank's own part."""
        return 1 / self.copy_bandwidth_bytes_per_s if self.copy_bandwidth_bytes_per_s else 0.0

    @property
    def rise_s(self) -> float:
        """``half_bytes`` as seconds: x seconds of bytes at full bandwidth take x + sqrt(rise_s x)."""
        return self.half_bytes / self.bandwidth_bytes_per_s

    def efficiency(self, wire_bytes: Num) -> Num:
        """Share of the bandwidth that a message of this size gets: 0 to 1."""
        return wire_bytes / (wire_bytes + root(self.half_bytes * wire_bytes))

    def time_s(self, steps: Num, wire_bytes: Num, own_bytes: Num = 0.0) -> Num:
        """Seconds of one call; all arguments are numbers or arrays that broadcast. A group of one (steps = 0) costs nothing."""
        launch = where(steps > 0, self.launch_s, 0.0)
        sent = (wire_bytes + root(self.half_bytes * wire_bytes)) / self.bandwidth_bytes_per_s
        return launch + steps * self.step_latency_s + sent + own_bytes * self.copy_s_per_byte


@dataclass(frozen=True, kw_only=True)
class MeasuredCurve(Curve):
    """A curve that was fitted to measurements, with where it comes from and how well it fits.

    Attributes:
        nodes: how many nodes the measured groups spanned; ranks: the group sizes; payload_bytes: smallest and largest.
        points: how many were fitted. median_error: of these points; left_out_error: median with each size left out in turn,
            None if unknown.
    """

    op: str
    algorithm: str
    nodes: int
    ranks: tuple[int, ...]
    payload_bytes: tuple[int, ...]
    points: int
    median_error: float
    left_out_error: float | None = None
    source: str = ""
