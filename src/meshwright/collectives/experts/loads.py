"""Read a histogram of experts' loads: ``{"loads": [812, 790, ...]}``, one number for each expert, counts or shares."""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import InputError, Mistake
from meshwright.spec.files import read_json


def read_loads(path: Path) -> tuple[float, ...]:
    """The numbers as they stand. Raises InputError: no such file, no JSON object with ``loads``, or something that is no number."""
    values = read_json(path)
    loads = values.get("loads")
    if not isinstance(loads, list) or not loads:
        raise InputError([Mistake(str(path), "loads", None, '{"loads": [812, 790, ...]}, a number for each expert', problem="is missing")])
    wrong = [
        Mistake(str(path), f"loads[{i}]", str(value), "a number of 0 or more")
        for i, value in enumerate(loads)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0
    ]
    unknown = [Mistake(str(path), key, None, "loads", problem="is not a known key") for key in values if key != "loads"]
    if wrong or unknown:
        raise InputError([*wrong, *unknown])
    return tuple(map(float, loads))
