"""What is shown is what is sent: text and drawing hold every message of every step and what each rank then holds."""

import re
from xml.etree import ElementTree

import pytest

from meshwright.collectives.algorithms import OPS, algorithms, ring
from meshwright.collectives.show import show_text
from meshwright.collectives.show_svg import show_svg
from meshwright.errors import InputError

SVG = "{http://www.w3.org/2000/svg}"
ALL = [(op, a.name, n) for op in OPS for n in (1, 4, 6) for a in algorithms(op, n, 2)]

RING_OF_THREE = """\
all_gather ring: 3 ranks, 3 chunks, 2 steps, 6 chunks sent

start
  chunk  0  1  2
  rank 0 0* .  .
  rank 1 .  1* .
  rank 2 .  .  2*

step 1 of 2
  0 -> 1: 0   1 -> 2: 1   2 -> 0: 2
  chunk  0  1  2
  rank 0 0* .  2*
  rank 1 0* 1* .
  rank 2 .  1* 2*

step 2 of 2
  0 -> 1: 2   1 -> 2: 0   2 -> 0: 1
  chunk  0  1  2
  rank 0 0* 1* 2*
  rank 1 0* 1* 2*
  rank 2 0* 1* 2*
"""


def build(op: str, name: str, ranks: int):
    return next(a for a in algorithms(op, ranks, 2) if a.name == name).build(ranks)


def test_ring_of_three_in_full():
    assert show_text(ring.all_gather(3), "ring") == RING_OF_THREE


def test_partial_sums_grow_along_the_ring():
    text = show_text(ring.reduce_scatter(4), "ring")
    last = text.rsplit("step 3 of 3\n", 1)[1]
    assert re.findall(r"0-3\*", last) == ["0-3*"] * 4
    assert "+" in last.splitlines()[0]


@pytest.mark.parametrize(("op", "name", "ranks"), ALL)
def test_text_holds_every_chunk_that_is_sent(op, name, ranks):
    steps = build(op, name, ranks)
    sent = [line.split("   ") for line in show_text(steps, name).splitlines() if "->" in line]
    pieces = [piece for line in sent for message in line for piece in message.split(": ")[1].split()]
    assert len(pieces) == len(steps)
    assert sum(piece.startswith("+") for piece in pieces) == steps.reduce.sum()


@pytest.mark.parametrize(("op", "name", "ranks"), ALL)
def test_drawing_is_xml_with_an_arrow_for_every_message_and_a_cell_for_every_chunk(op, name, ranks):
    steps = build(op, name, ranks)
    root = ElementTree.fromstring(show_svg(steps, name))
    cells = [e for e in root.iter(f"{SVG}rect") if e.get("class") == "cell"]
    arrows = [e for e in root.iter(f"{SVG}line") if e.get("class") == "message"]
    assert len(cells) == steps.ranks * steps.chunks * (steps.num_steps + 1)
    assert len(arrows) == len({*zip(steps.step, steps.sender, steps.receiver, steps.reduce, strict=True)})
    assert sum(len(e[0].text.split(" adds " if " adds " in e[0].text else " overwrites ")[1].split()) for e in arrows) == len(steps)
    width, height = (float(root.get(side)) for side in ("width", "height"))
    for cell in cells:
        assert 0 <= float(cell.get("x")) and float(cell.get("x")) + float(cell.get("width")) <= width
        assert 0 <= float(cell.get("y")) and float(cell.get("y")) + float(cell.get("height")) <= height


def test_arrows_that_add_are_solid_and_arrows_that_overwrite_are_dashed():
    root = ElementTree.fromstring(show_svg(ring.all_reduce(3), "ring"))
    for arrow in root.iter(f"{SVG}line"):
        assert (arrow.get("stroke-dasharray") is None) == (" adds " in arrow[0].text)


def test_what_nobody_could_follow_is_refused():
    for draw in (show_text, show_svg):
        with pytest.raises(InputError, match="63,488 cells, more than 40,000"):
            draw(ring.all_reduce(32), "ring")
