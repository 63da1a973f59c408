"""What every price of a collective comes down to: a latency, seconds per byte, and seconds per root of a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.arithmetic import Num, root, smaller, where


@dataclass(frozen=True, slots=True)
class Line:
    """time_s = latency_s + payload_bytes * s_per_byte + sqrt(payload_bytes) * s_per_root_byte.

    The last term is how pipelining rises to full bandwidth (spec/network.py). All three are numbers, or arrays with one entry
    per layout.
    """

    latency_s: Num
    s_per_byte: Num
    s_per_root_byte: Num

    def time_s(self, payload_bytes: Num) -> Num:
        """Seconds of one call."""
        return fastest_s((self,), payload_bytes)


NOTHING = Line(0.0, 0.0, 0.0)
"""What a group of one takes."""


def sent(latency_s: Num, seconds: Num, rise_s: Num, copy_s: Num = 0.0) -> Line:
    """The line of a collective whose bytes take ``seconds`` for each byte of payload at full bandwidth, and ``copy_s`` locally."""
    return Line(latency_s, seconds + copy_s, root(rise_s * seconds))


def either(condition: Num, yes: Line, no: Line) -> Line:
    """One line where a condition holds, another elsewhere."""
    return Line(
        where(condition, yes.latency_s, no.latency_s),
        where(condition, yes.s_per_byte, no.s_per_byte),
        where(condition, yes.s_per_root_byte, no.s_per_root_byte),
    )


def fastest_s(lines: Sequence[Line], payload_bytes: Num) -> Num:
    """Seconds of the fastest of a few lines."""
    root_bytes = root(payload_bytes)
    seconds: Num = None
    for line in lines:
        own_s = line.latency_s + payload_bytes * line.s_per_byte + root_bytes * line.s_per_root_byte
        seconds = own_s if seconds is None else smaller(seconds, own_s)
    return seconds
