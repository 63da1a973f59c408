"""The few operations beyond + - * / that a formula may use on a number and on an array of numbers alike.

Each gives the same bits either way (DESIGN principle 2). Plain numbers take the plain Python path, which is an order of
magnitude faster than a numpy call on a scalar and keeps one estimate below a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Num = Any
"""An int, a float, or a numpy array with one entry per layout."""


class kept:
    """``functools.cached_property`` without its lock, which Python 3.11 takes on every first access: a formula is worked out once for
    each object. (3.12 dropped the lock.)"""

    def __init__(self, work_out: Callable[[Any], Any]) -> None:
        self._work_out = work_out
        self.__doc__ = work_out.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._work_out(instance)
        return found


def is_array(value: Num) -> bool:
    """Whether this is a column of values."""
    return isinstance(value, np.ndarray)


def larger(a: Num, b: Num) -> Num:
    """Elementwise max."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b


def largest(a: Num, b: Num, c: Num) -> Num:
    """Elementwise max of three."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) or isinstance(c, np.ndarray):
        return np.maximum(np.maximum(a, b), c)
    return max(a, b, c)


def smaller(a: Num, b: Num) -> Num:
    """Elementwise min."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b


def where(condition: Num, yes: Num, no: Num) -> Num:
    """Elementwise ``yes if condition else no``; both are evaluated."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def root(value: Num) -> Num:
    """Square root; IEEE 754 wants it rounded exactly, so that ``math`` and numpy agree to the last bit."""
    return np.sqrt(value) if isinstance(value, np.ndarray) else math.sqrt(value)


def ceil_div(numerator: Num, denominator: Num) -> Num:
    """Whole units of ``denominator`` that cover ``numerator``."""
    return -(-numerator // denominator)


def ceil_log2(value: Num) -> Num:
    """Smallest k with 2^k >= value, for whole values of 1 or more; exact, since it reads the exponent."""
    if is_array(value):
        mantissa, exponent = np.frexp(value)
        return exponent - (mantissa == 0.5)
    fraction, power = math.frexp(value)
    return power - (fraction == 0.5)
