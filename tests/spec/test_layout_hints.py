"""A mistake in a layout's text shows the whole value and says what the key may look like."""

from __future__ import annotations

import pytest

from meshwright.errors import InputError
from meshwright.spec.layout import KEYS, parse_layout

WRONG = {
    "tp": "tp=0", "sp": "sp=yes", "vocab": "vocab=no", "vocab_pad": "vocab_pad=0", "cp": "cp=4:usp=2x3", "pp": "pp=4:interleaved*1",
    "stages": "stages=a", "ep": "ep=x", "etp": "etp=0", "dp": "dp=2x", "zero": "zero=4", "mb": "mb=-1", "recompute": "recompute=full=0",
    "order": "order=tp",
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_is_shown_whole_with_a_hint(key: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layout(WRONG[key])
    (mistake,) = caught.value.mistakes
    assert (mistake.key, mistake.value) == (key, WRONG[key].partition("=")[2])
    assert mistake.legal and mistake.hint


def test_upper_case_is_a_slip() -> None:
    with pytest.raises(InputError) as caught:
        parse_layout("TP=8")
    assert caught.value.mistakes[0].hint == "did you mean `tp`?"
