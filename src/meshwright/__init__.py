"""Meshwright plans, explains, proves, runs and diagnoses parallel Transformers.

The verbs are functions here (``meshwright.estimate(...)``, see api.py); the first use of one loads what it needs.
"""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import Any as _Any

__version__ = "0.1.0"

VERBS = (
    "plan", "estimate", "compare", "explain", "memory", "ranks", "orders", "timeline", "prove", "collectives", "validate", "calibrate",
    "diagnose", "watch", "lint", "catalog",
)  # fmt: skip
"""Functions of api.py that are offered here."""


def __getattr__(name: str) -> _Any:
    if name in VERBS:
        return getattr(_import_module("meshwright.api"), name)
    raise AttributeError(f"module 'meshwright' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*VERBS, "__version__"]


class _Package(_ModuleType):
    """Some verbs have a module of the same name, which Python would put in the function's place once it is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in VERBS and isinstance(value, _ModuleType)):
            super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package
