"""The notation prints what it parses and parses what it prints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.notation import AXES, Dim, Sharded, parse
from meshwright.units import DTYPE_BYTES

LETTERS = st.sampled_from(["B", "S", "D", "H+Hv", "UF", "X*etp", "2", "2D", "QKV", "Fs"])


@st.composite
def tensors(draw: st.DrawFn) -> Sharded:
    """Any tensor: every axis cuts at most one dim or is a sum."""
    letters = draw(st.lists(LETTERS, max_size=4))
    axes: list[list[str]] = [[] for _ in letters]
    partial: list[str] = []
    for axis in draw(st.lists(st.sampled_from(AXES), unique=True, max_size=6)):
        draw(st.sampled_from([*axes, partial])).append(axis)
    dims = tuple(Dim(letter, tuple(cuts)) for letter, cuts in zip(letters, axes, strict=True))
    return Sharded(draw(st.sampled_from(sorted(DTYPE_BYTES))), dims, tuple(partial))


@given(tensors())
def test_parsing_undoes_printing(tensor: Sharded) -> None:
    assert parse(str(tensor)) == tensor
    assert str(parse(str(tensor))) == str(tensor)
    assert hash(parse(str(tensor))) == hash(tensor)


def test_the_notation_of_the_documentation() -> None:
    tensor = parse("bf16[B/dp, S/(cp,tp), D]{+ep}")
    assert tensor == Sharded("bf16", (Dim("B", ("dp",)), Dim("S", ("cp", "tp")), Dim("D")), ("ep",))
    assert (tensor.axes_of("tp"), tensor.axes_of("dp"), tensor.axes_of("ep")) == (1, 0, None)
    assert tensor.dim_texts == ("B/dp", "S/(cp,tp)", "D")


def test_blanks_do_not_matter() -> None:
    assert parse("  bf16[B/dp ,S/cp,  D]{+tp} ") == parse("bf16[B/dp, S/cp, D]{+tp}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is not a sharded tensor"),
        ("bf16", "is not a sharded tensor"),
        ("[B, S]", "is not a sharded tensor"),
        ("bf16[B", "is not a sharded tensor"),
        ("bf16[B]{tp}", "is not a sharded tensor"),
        ("bf16[B][S]", "is not a sharded tensor"),
        ("BF16[B]", "is not a sharded tensor"),
        ("bf16[B,,S]", "is not a dim"),
        ("bf16[B,]", "is not a dim"),
        ("bf16[B/]", "is not a dim"),
        ("bf16[B/(tp)]", "is not a dim"),
        ("bf16[B/tp,cp]", "'cp' is not a dim"),
        ("bf16[B/(tp,cp), S/cp]", "axis 'cp' occurs twice"),
        ("bf16[B/tp]{+tp}", "axis 'tp' occurs twice"),
        ("bf16[B]{+tp}{+tp}", "axis 'tp' occurs twice"),
        ("bf16[B/xp]", "unknown axis 'xp'"),
        ("bf16[B]{+xp}", "unknown axis 'xp'"),
    ],
)
def test_what_is_not_a_tensor_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse(text)
