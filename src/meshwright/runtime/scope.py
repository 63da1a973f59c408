"""Where in the run the program is: step, micro-batch, phase, module. The recorder stamps events with it.

    with at(step=0, phase="forward", micro_batch=3), in_module("layers.5"), in_module("attention.qkv"):
        ...

Autograd runs a backward outside of its forward's ``with``; ``runtime/parallel/comm.py`` keeps the ``origin`` of each
collective's forward and restores it around what the backward sends.
"""

from __future__ import annotations

import sys
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple


class Scope(NamedTuple):
    """The stamp of recording.Event: its attributes of the same names."""

    step: int | None = None
    micro_batch: int | None = None
    chunk: int | None = None
    phase: str = ""
    module: str = ""
    call_site: str = ""


_NOWHERE = Scope()
_scope: ContextVar[Scope] = ContextVar("scope", default=_NOWHERE)


def current() -> Scope:
    return _scope.get()


class _Inside:
    """A scope for a ``with``. A class and no generator: layers enter a dozen of them in every pass."""

    __slots__ = ("_scope", "_token")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = _scope.set(self._scope)

    def __exit__(self, *error: object) -> None:
        _scope.reset(self._token)


def at(**stamp: Any) -> _Inside:
    """Set attributes of the scope inside the ``with``."""
    return _Inside(_scope.get()._replace(**stamp))


def in_module(name: str) -> _Inside:
    """Enter a module; nested names are joined by dots."""
    step, micro_batch, chunk, phase, outer, call_site = _scope.get()
    return _Inside(Scope(step, micro_batch, chunk, phase, f"{outer}.{name}" if outer else name, call_site))


class Origin(NamedTuple):
    """What a backward keeps of its forward's scope."""

    module: str
    call_site: str
    micro_batch: int | None
    chunk: int | None


def origin() -> Origin:
    """The module and call site of the code that runs now, for its backward."""
    scope = _scope.get()
    return Origin(scope.module, scope.call_site or call_site(), scope.micro_batch, scope.chunk)


def back_at(origin: Origin, phase: str) -> _Inside:
    """Inside a backward: the forward's module and call site, in ``phase`` unless a recomputation is going on."""
    scope = _scope.get()
    now = scope.phase if scope.phase in ("", "recompute") else phase
    return _Inside(Scope(scope.step, origin.micro_batch, origin.chunk, now, origin.module, origin.call_site))


def transparent(file: str) -> None:
    """Say that a source file only passes calls on: a call site is then its caller's line."""
    _transparent.add(file)


_transparent: set[str] = {__file__}


def call_site() -> str:
    """``file.py:12``: the innermost frame that is neither torch's nor of a transparent file; "" if there is none.

    The file is given from the package (or top folder) on, so that recordings of two machines agree.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _transparent and "/torch/" not in name and not name.startswith("<") and "/contextlib.py" not in name:
            return f"{_short(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _short(file: str) -> str:
    parts = file.replace("\\", "/").split("/")
    for anchor in ("site-packages", "src"):
        if anchor in parts:
            return "/".join(parts[parts.index(anchor) + 1 :])
    return "/".join(parts[-2:])
