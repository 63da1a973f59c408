"""The report of a diagnosis: one file that loads nothing, shows who waits for whom and who called what, and lets no name become markup."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from meshwright.diagnose.cases import evidence_of
from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import Diagnosis
from meshwright.diagnose.judge import judge
from meshwright.diagnose.order_view import order_views
from meshwright.diagnose.rulebook import rulebook
from meshwright.diagnose.slow.lanes import profiled_step
from meshwright.diagnose.slow.profile import profile_of
from meshwright.render.diagnose import diagnosis_text
from meshwright.render.diagnose_html import diagnosis_html

SLOW_RANK = {
    "profile": {
        "groups": {"dp": [0, 1, 2]},
        "all": ["step 0-100", "loader 0-5", "forward 5-20", "backward 20-40", "dp all_reduce 40-95 8MB"],
        1: ["step 0-100", "forward 0-40", "backward 40-90", "dp all_reduce 90-95 8MB"],
    }
}
OTHER_OP = {
    "recordings": {
        "groups": {"tp.0": [0, 1, 2]},
        "all": ["tp.0 all_reduce(sum) float32[4] at model.py:10", "tp.0 all_gather float32[8] at model.py:20"],
        2: ["tp.0 all_reduce(sum) float32[4] at model.py:10", "tp.0 all_reduce(sum) float32[8] at model.py:30"],
    }
}
PIPELINE = {
    "operations": {
        "stages": 3, "data_ranks": 2, "micro_batches": 6, "steps": 2, "forward": 1, "backward": 2, "slow": {"rank": 3, "times": 2},
    }
}  # fmt: skip


class Page(HTMLParser):
    """Tags with their attributes, and the texts of <title> elements in pictures; complains of tags that are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report(case: dict[str, Any]) -> tuple[str, Page, Evidence, Diagnosis]:
    evidence = evidence_of(case)
    diagnosis = judge(evidence)
    html = diagnosis_html(diagnosis, evidence)
    return html, Page(html), evidence, diagnosis


@pytest.mark.parametrize("case", [SLOW_RANK, OTHER_OP, PIPELINE], ids=["profile", "recordings", "operations"])
def test_report_is_whole_and_loads_nothing(case: dict[str, Any]) -> None:
    html, page, _, diagnosis = report(case)
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search(r"https?://|@import|url\(", html)
    assert not any(key in attributes for _, attributes in page.tags for key in ("src", "href", "onclick", "onload"))
    assert "prefers-color-scheme: dark" in html
    assert diagnosis.findings[0].title in "".join(page.texts)


def test_who_waits_for_whom_is_drawn() -> None:
    _, page, _, _ = report(SLOW_RANK)
    classes = [attributes.get("class") for tag, attributes in page.tags if tag == "rect"]
    assert {"forward", "backward", "waiting", "transfer", "loading"} <= set(classes)
    assert sum("waits for rank 1 in all_reduce 0 of dp: 50 ms" in text for text in page.texts) == 2
    labels = [attributes["class"] for tag, attributes in page.tags if tag == "text" and "label" in (attributes.get("class") or "")]
    assert labels == ["label", "label culprit", "label"]


def test_pictures_place_pieces_where_they_happened() -> None:
    profile = evidence_of(SLOW_RANK).derived(profile_of)
    assert profile is not None
    picture = profiled_step(profile)
    assert picture.span_s == pytest.approx(0.1)
    column = picture.span_s / 1200
    (forward,) = [piece for piece in picture.lanes[0].upper if piece.what == "forward"]
    assert (forward.start_s, forward.end_s) == (pytest.approx(0.005, abs=column), pytest.approx(0.02, abs=column))
    waiting, transfer = picture.lanes[0].lower
    assert (waiting.start_s, waiting.end_s, transfer.end_s) == pytest.approx((0.04, 0.09, 0.095))


def test_first_divergence_is_marked() -> None:
    _, page, evidence, diagnosis = report(OTHER_OP)
    (view,) = order_views(evidence, diagnosis)
    assert [row.first for row in view.rows] == [False, True]
    assert view.rows[1].odd == (2,)
    assert [attributes.get("class") for tag, attributes in page.tags if tag == "tr"].count("first") == 1
    assert [attributes.get("class") for tag, attributes in page.tags if tag == "td"].count("words odd") == 1


def test_healthy_ranks_have_no_marks() -> None:
    agreed = {"recordings": {key: value for key, value in OTHER_OP["recordings"].items() if key != 2}}
    html, page, evidence, diagnosis = report(agreed)
    assert order_views(evidence, diagnosis) == [] and "odd" not in [attributes.get("class") for _, attributes in page.tags]
    assert "Nothing wrong found" in html


def test_names_do_not_become_markup() -> None:
    name = "acme_all_gather<script>alert(1)</script>"
    case = {"profile": {"groups": {"tp": [0, 1]}, "all": ["step 0-100", "forward 0-50", f"kernel {name} 50-100"]}}
    html, page, _, _ = report(case)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "&lt;script&gt;" in html


def test_text_has_a_row_per_rank_and_the_collectives() -> None:
    evidence = evidence_of(SLOW_RANK)
    text = diagnosis_text(judge(evidence), evidence)
    assert re.search(r"^ +1 +100 ms +40.0% +50.0% ", text, re.MULTILINE)
    assert re.search(r"^dp +all_reduce +3 +8 MB .* rank 1 \(1\)", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 120


def test_every_rules_case_can_be_reported() -> None:
    for rule in rulebook():
        if rule.kind == "slow":
            _, page, _, diagnosis = report(dict(rule.fires[0]))
            assert rule.code in {found.code for found in diagnosis.findings}
            assert all(found.title in "".join(page.texts) for found in diagnosis.findings)
