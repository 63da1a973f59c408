"""Read a changed config.json of one family, for tests of what it says and of how its mistakes are told."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from meshwright.errors import InputError, Mistake
from meshwright.spec.huggingface import read_config
from meshwright.spec.model import Model
from model_configs import CONFIGS


def read(family: str = "llama", without: tuple[str, ...] = (), **changes: Any) -> Model:
    """The small config of a family without some keys, and with others or other values."""
    config = {key: value for key, value in CONFIGS[family].items() if key not in without}
    return read_config({**copy.deepcopy(config), **changes}, "config.json", "test")


def mistakes(family: str = "llama", without: tuple[str, ...] = (), **changes: Any) -> list[Mistake]:
    """What is wrong with such a config."""
    with pytest.raises(InputError) as caught:
        read(family, without, **changes)
    return list(caught.value.mistakes)


def only_mistake(family: str = "llama", without: tuple[str, ...] = (), **changes: Any) -> Mistake:
    """The one thing that is."""
    (mistake,) = mistakes(family, without, **changes)
    return mistake


def windows(model: Model) -> list[int | None]:
    """The window of each layer."""
    return [kind.window for kind in model.layers]
