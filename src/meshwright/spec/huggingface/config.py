"""The keys of one config.json, read as transformers reads them.

Three things differ from a plain ``Table``: a key may have another name (``n_embd`` is ``hidden_size``), ``null`` is
legal for some keys only, and a size that is left out is transformers' default, which is remembered as assumed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from meshwright.errors import Mistakes, did_you_mean
from meshwright.spec.huggingface.features import note_feature
from meshwright.spec.huggingface.irrelevant import check_irrelevant
from meshwright.spec.tables import LARGEST_SIZE, Table

__all__ = ["Config"]


class Config(Table):
    """A config.json of one family.

    Args:
        aliases: the key for each other name that it may have, as in transformers' ``attribute_map``.
    """

    def __init__(self, values: Mapping[str, object], mistakes: Mistakes, aliases: Mapping[str, str]) -> None:
        self._all = dict(values)
        super().__init__(self._all, mistakes)
        self._defaults: dict[str, int] = {}
        self._written: dict[str, str] = {}
        self._null: set[str] = set()
        for alias, key in aliases.items():
            self._take_alias(alias, key)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The sizes that were left out, as "hidden_size = 4096"."""
        return tuple(f"{key} = {value}" for key, value in self._defaults.items())

    def size(self, key: str, default: int, *, low: int = 1, high: int = LARGEST_SIZE) -> int:
        """A whole number; where the key is absent ``default``, which is remembered as assumed."""
        if key not in self.values:
            self._defaults[key] = default
        return self.integer(key, default, low=low, high=high)

    def optional_size(self, key: str, default: int | None, *, low: int = 1) -> int | None:
        """A whole number or null, which stands for None; ``default`` where the key is absent."""
        if self.is_null(key):
            return None
        return self.integer(key, default, low=low)

    def allow_null(self, *keys: str) -> None:
        """In these keys null is as good as absence."""
        self._null.update(keys)

    def is_null(self, key: str) -> bool:
        """Whether the key is there and null, which is legal in it."""
        self.allow_null(key)
        return key not in self and key in self.values

    def distrust(self, key: str) -> None:
        """``key`` follows from one that is wrong: rules about it are passed over."""
        self._wrong.add(key)

    def only(self, key: str, legal: object, reason: str, *, null: bool = True) -> None:
        """A key that has one understood value, which is also what its absence means; and null, where the key takes it."""
        if null:
            self.allow_null(key)
        value = self.values.get(key)
        if key in self and (value != legal or isinstance(value, bool) != isinstance(legal, bool)):
            self.note(key, f"{json.dumps(legal)}, or leave the key out", problem=reason)

    def sub_table(self, key: str) -> Table | None:
        """An object inside this one; null stands for none."""
        self.allow_null(key)
        return self.table(key, required=False)

    def finish(self, irrelevant: Mapping[str, str]) -> None:
        """Note what is wrong with the keys that no reader asked for, and each null that means nothing."""
        for key in self._known:
            if key in self.values and self.values[key] is None and key not in self._null:
                self.note(key, "a value, or leave the key out", problem="is null")
        for key in self.unread():
            if not check_irrelevant(self, key, irrelevant) and self.values[key] is not None and not note_feature(self, key):
                self._note_unknown(key, irrelevant)

    def note(self, key: str, legal: str, hint: str = "", problem: str = "") -> None:
        """As in Table; the key is named as it was written, and a default that is wrong here as one."""
        self._wrong.add(key)
        if key in self._defaults:
            hint = hint or f"it is left out, and transformers takes {self._defaults[key]}"
        super().note(self._written.get(key, key), legal, hint, problem)

    def read_keys(self) -> tuple[str, ...]:
        """The keys that were asked for so far."""
        return tuple(self._known)

    def _note_unknown(self, key: str, irrelevant: Mapping[str, str]) -> None:
        known = [*self._known, *irrelevant]
        legal = "the keys " + " ".join(sorted(self._known))
        hint = did_you_mean(key, known) or "it may change the model; if it does not, take it out"
        self.note(key, legal, hint, "is not a known key")

    def _take_alias(self, alias: str, key: str) -> None:
        if alias not in self.values:
            return
        self._known[alias] = None
        value = self.values[alias]
        if key in self.values and (self.values[key] != value or type(self.values[key]) is not type(value)):
            self.note(alias, f"the value of `{key}`, of which it is another name", "leave one of them out", f"contradicts {key}")
            return
        if key not in self.values:
            self._all[key] = value
            self._written[key] = alias
