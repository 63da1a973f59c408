"""The grid of a pipeline: every computation where and when the timeline has it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from meshwright.render.grid import text_grid
from meshwright.render.grid_svg import svg_grid
from meshwright.schedule import build
from meshwright.timeline import simulate, uniform_costs


def grid(name: str, p: int, v: int, m: int, width: int, **costs: float) -> str:
    schedule = build(name, p, v, m)
    return text_grid(simulate(schedule, uniform_costs(schedule, **costs)), width, legend=False)


def test_1f1b_as_text() -> None:
    """F = 1, B = 2: 15 units of time at three columns each (the drawing of arXiv 2104.04473 figure 3, for 2 ranks)."""
    assert grid("1f1b", 2, 1, 4, width=8 + 45).splitlines() == [
        "rank 0  F0-F1->>>>>>B0----F2-B1----F3-B2---->>>B3----",
        "rank 1     F0-B0----F1-B1----F2-B2----F3-B3----",
    ]


def test_messages_on_their_way_are_marked() -> None:
    assert grid("1f1b", 2, 1, 1, width=8 + 28, transfer_s=0.5).splitlines() == [
        "rank 0  F0-->>>>>>>>>>>>>>~~B0------",
        "rank 1        F0--B0------",
    ]


def test_a_number_that_does_not_fit_is_left_out_whole() -> None:
    text = grid("gpipe", 1, 1, 12, width=8 + 36 * 2, backward_input_s=0.5, backward_weight_s=0.5)
    assert "F9F-" not in text
    assert "F10" in text
    narrow = grid("gpipe", 1, 1, 12, width=8 + 48, backward_input_s=0.5, backward_weight_s=0.5)
    assert "F9F-F-B0" in narrow


def test_chunks_and_pairs_are_told_apart() -> None:
    assert "F0a" in grid("interleaved", 2, 2, 2, width=120)
    assert "B0b" in grid("interleaved", 2, 2, 2, width=120)
    assert "(F2aB5b)" in grid("dualpipe", 2, 1, 8, width=200)


@pytest.mark.parametrize("case", [("1f1b", 4, 1, 8), ("zb-v", 4, 2, 8), ("dualpipe", 4, 1, 8)], ids=lambda case: case[0])
def test_the_picture_has_a_box_for_every_computation(case: tuple[str, int, int, int]) -> None:
    schedule = build(*case)
    timeline = simulate(schedule, uniform_costs(schedule, transfer_s=0.1))
    picture = ElementTree.fromstring(svg_grid(timeline))
    titles = [element.text or "" for element in picture.iter("{http://www.w3.org/2000/svg}title")]
    boxes = [title for title in titles if " to " in title]
    assert len(boxes) == int((~timeline.second_of_pair).sum())
    assert any(title.startswith("waits: ") for title in titles)
    assert f"bubble {timeline.bubble_fraction:.1%}" in titles[0]
