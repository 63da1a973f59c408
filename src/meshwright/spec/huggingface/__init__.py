"""config.json of Hugging Face -> Model, with transformers' defaults and nothing ignored that may change the model.

Every key is read, known to be irrelevant (irrelevant.py), or refused by its name: features.py says what many of them ask
for. families.py lists the types; each is read by a function of the file that its block is in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches

from meshwright.errors import Mistakes
from meshwright.spec.files import non_finite
from meshwright.spec.huggingface.config import Config
from meshwright.spec.huggingface.families import FAMILIES, Family
from meshwright.spec.huggingface.features import note_all_features
from meshwright.spec.huggingface.irrelevant import BASE
from meshwright.spec.model import Model
from meshwright.spec.model_rules import note_broken_rules

__all__ = ["FAMILIES", "read_config", "read_keys"]


def read_config(values: Mapping[str, object], file: str, name: str) -> Model:
    """The model of one config.json.

    Args:
        values: its keys. file: named in mistakes, and the model's source. name: the model's.

    Raises:
        InputError: every mistake of the config: a model_type or a part that is not planned, keys of the wrong type or
            out of range, sizes that do not fit together, unknown keys.
    """
    with Mistakes.of(file) as mistakes:
        model = _read(values, mistakes)
        seen = {mistake.key for mistake in mistakes.found}
        for key, value in non_finite(values):
            if key not in seen:
                mistakes.add(key, value, "a finite number", problem="is not finite")
    assert model is not None
    return replace(model, name=name, source=file)


def read_keys(model_type: str) -> tuple[str, ...]:
    """The keys of a config.json that decide the model of this type; what the documentation lists."""
    config = Config({}, Mistakes(""), {})
    FAMILIES[model_type].read(config)
    return tuple(sorted(config.read_keys()))


def _read(values: Mapping[str, object], mistakes: Mistakes) -> Model | None:
    config = Config(values, mistakes, {})
    family = _find_family(config)
    if family is None:
        note_all_features(config, BASE)
        return None
    config = Config(values, mistakes, family.aliases)
    config.choice("model_type", FAMILIES)
    assumed_head = _check_classes(config, family)
    model = family.read(config)
    config.finish(family.irrelevant)
    note_broken_rules(model, config, family.keys)
    return replace(model, assumed=(*config.assumed, *assumed_head))


def _find_family(config: Config) -> Family | None:
    model_type = config.text("model_type", "")
    if not config.sound("model_type"):
        return None
    family = FAMILIES.get(model_type)
    if family is None:
        named = _slips(model_type) if model_type else _by_architecture(config)
        hint = f"did you mean `{named[0]}`?" if named else "a decoder of the same parts can be written as a model's TOML file"
        problem = "is not a model type that is planned yet" if model_type else "is missing or empty"
        config.note("model_type", "one of " + " ".join(FAMILIES), hint, problem)
    return family


def _slips(model_type: str) -> list[str]:
    """Families that a slip of the keyboard may have meant, the likeliest first.

    Other digits, as in llama4 and qwen3_5, are another model; so are llava and mamba, as near as llama is.
    """
    digits = re.sub(r"[^0-9]", "", model_type)
    same = [name for name in FAMILIES if re.sub(r"[^0-9]", "", name) == digits]
    return get_close_matches(model_type.lower()[:100], same, cutoff=0.85)


def _by_architecture(config: Config) -> list[str]:
    named = config.values.get("architectures")
    classes = named if isinstance(named, list) else []
    return [name for name, family in FAMILIES.items() if family.architecture in classes]


def _check_classes(config: Config, family: Family) -> list[str]:
    """``architectures`` and ``auto_map`` name the class that is planned, not a classifier or a block of another library.

    Returns what is assumed: the class without a head is the same decoder, and gets one.
    """
    planned = (family.architecture, family.headless)
    config.allow_null("architectures", "auto_map")
    classes = config.texts("architectures", ())
    other = [name for name in classes if name.lower() not in (planned[0].lower(), planned[1].lower())]
    if other:
        config.note("architectures", " or ".join(planned), problem=f"names {other[0]}, which is not planned for this model_type")
    auto_map = config.sub_table("auto_map")
    own = auto_map.values.get("AutoModelForCausalLM") if auto_map else None
    if own is not None and (not isinstance(own, str) or own.rpartition(".")[2] not in planned):
        config.note("auto_map", f"a class of the name {planned[0]}", problem="builds the model with code of its own")
    return [f"architectures = {family.architecture}"] if family.headless in classes else []
