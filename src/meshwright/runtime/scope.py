"""Where in the run the program is: step, micro-batch, phase, module. The recorder stamps events with it.

    with at(step=0, phase="forward", micro_batch=3), in_module("layers.5"), in_module("attention.qkv"):
        ...

Autograd runs a backward outside of its forward's ``with``; ``runtime/parallel/comm.py`` keeps the ``origin`` of each
collective's forward and restores it around what the backward sends.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any


@dataclass(frozen=True, slots=True)
class Scope:
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


@contextmanager
def at(**stamp: Any) -> Iterator[None]:
    """Set attributes of the scope inside the ``with``."""
    token = _scope.set(replace(_scope.get(), **stamp))
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def in_module(name: str) -> Iterator[None]:
    """Enter a module; nested names are joined by dots."""
    outer = _scope.get().module
    with at(module=f"{outer}.{name}" if outer else name):
        yield


@dataclass(frozen=True, slots=True)
class Origin:
    """What a backward keeps of its forward's scope."""

    module: str
    call_site: str
    micro_batch: int | None
    chunk: int | None


def origin() -> Origin:
    """The module and call site of the code that runs now, for its backward."""
    scope = _scope.get()
    return Origin(scope.module, scope.call_site or call_site(), scope.micro_batch, scope.chunk)


@contextmanager
def back_at(origin: Origin, phase: str) -> Iterator[None]:
    """Inside a backward: the forward's module and call site, in ``phase`` unless a recomputation is going on."""
    scope = _scope.get()
    now = scope.phase if scope.phase in ("", "recompute") else phase
    with at(module=origin.module, call_site=origin.call_site, micro_batch=origin.micro_batch, chunk=origin.chunk, phase=now):
        yield


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
