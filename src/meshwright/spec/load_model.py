"""What a user calls a model -> Model: a name of the catalog, a config.json, a folder with one, or a TOML file."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from meshwright.catalog import list_names
from meshwright.catalog import path as catalog_path
from meshwright.errors import InputError, Mistake, did_you_mean
from meshwright.spec.files import read_json
from meshwright.spec.huggingface import read_config
from meshwright.spec.model import Model
from meshwright.spec.model_file import load_model_file

__all__ = ["load_model", "resolve_model"]

CONFIG = "config.json"
LEGAL = f"a name of the catalog, a Hugging Face {CONFIG}, a folder with one, or a model's TOML file"


def resolve_model(text: str) -> Model:
    """The model that ``text`` names; a name of the catalog goes before a file of the same name.

    Raises:
        InputError: there is no such model or file, or every mistake in the file.
    """
    if text.lower() in list_names("models"):
        path = catalog_path("models", text)
        return _load_known(path, path.stem)
    if not text.strip():
        raise InputError([Mistake("MODEL", "", None, LEGAL, "`meshwright catalog models` lists the names", "is empty")])
    if _is_path(text):
        return load_model(Path(text))
    names = list_names("models")
    hint = did_you_mean(text.rpartition("/")[2].lower(), names) or "`meshwright catalog models` lists the names"
    raise InputError([Mistake("MODEL", "model", text, LEGAL, hint, "is neither a file nor in the catalog of models")])


_load_known = cache(load_model_file)
"""The catalog's own files are read once; a user's may change while a program runs."""


def load_model(path: Path) -> Model:
    """The model of a file, or of the config.json in a folder. Raises InputError with every mistake."""
    if _is_folder(path):
        return _load_folder(path)
    if path.suffix.lower() == ".toml":
        return load_model_file(path)
    name = path.parent.name if path.name == CONFIG else path.stem
    return read_config(read_json(path, finite=False), str(path), name or path.absolute().parent.name)


def _load_folder(folder: Path) -> Model:
    config = folder / CONFIG
    if not config.exists():
        found = sorted(entry.name for entry in folder.glob("*.json"))[:5]
        hint = f"it holds {', '.join(found)}" if found else "a checkpoint's folder holds one beside its weights"
        raise InputError([Mistake(str(folder), "", None, f"a folder with a {CONFIG}", hint, f"is a folder without a {CONFIG}")])
    return load_model(config)


def _is_path(text: str) -> bool:
    """Whether ``text`` can only be meant as a path: something is there, or it ends like a file, or starts like one."""
    if text.lower().endswith((".json", ".toml")) or text.startswith(("/", "./", "../", "~")):
        return True
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # too long, or a NUL byte
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
