"""Unpickles plain data (containers, numbers, texts) and nothing else.

A pickle is a program; the only way in which it can reach code is by a global or a persistent id, and both are refused here. What is
left is memory: a memo index near 2^31 makes the C unpickler allocate tens of GB. So the process' address space is held to what a
file of that size can need, where the system lets us (Linux); elsewhere the pure-Python unpickler reads it, whose memo is a dict.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from meshwright.diagnose.source import Unreadable

BYTES_PER_BYTE = 64
"""An empty dict takes 64 bytes (Python 3.11) and one byte of pickle."""

SLACK_BYTES = 256 * 1024 * 1024


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise Unreadable(f"asks for code ({module}.{name}): not a dump, and not run")

    def persistent_load(self, pid: Any) -> Any:
        raise Unreadable("asks for an object from outside: not a dump, and not loaded")


class _PlainPython(pickle._Unpickler):
    find_class = _Plain.find_class
    persistent_load = _Plain.persistent_load


def load(data: bytes) -> Any:
    """The object in ``data``. Raises Unreadable."""
    try:
        with _memory_for(len(data)) as limited:
            return (_Plain if limited else _PlainPython)(io.BytesIO(data)).load()
    except (pickle.UnpicklingError, EOFError, IndexError, KeyError, ValueError, OverflowError, TypeError, AttributeError) as error:
        raise Unreadable(f"is a torn or damaged pickle ({_first_line(error)})") from None
    except MemoryError:
        raise Unreadable("asks for far more memory than its size: not a dump") from None


@contextmanager
def _memory_for(num_bytes: int) -> Iterator[bool]:
    """Hold the address space to what is used now and what ``num_bytes`` of pickle may need; False where that cannot be done."""
    if sys.platform != "linux":
        yield False
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + SLACK_BYTES + BYTES_PER_BYTE * num_bytes
    if soft != resource.RLIM_INFINITY:
        wanted = min(wanted, soft)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield True
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _first_line(error: Exception) -> str:
    return (str(error).split("\n")[0] or type(error).__name__)[:80]
