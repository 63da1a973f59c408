"""A diagnosis as one self-contained HTML file: findings, who called what, timelines of the step, tables."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files

from meshwright.diagnose.evidence import Evidence
from meshwright.diagnose.finding import Diagnosis
from meshwright.diagnose.order_view import order_views
from meshwright.diagnose.slow.lanes import Picture, played_step, profiled_step
from meshwright.diagnose.slow.profile import profile_of
from meshwright.diagnose.slow.what_if import what_ifs
from meshwright.render.diagnose import VERDICTS
from meshwright.render.diagnose_step import StepTable, step_tables
from meshwright.render.report_svg import legend, svg_of

TEMPLATE = "diagnose_report.html.jinja"


def diagnosis_html(diagnosis: Diagnosis, evidence: Evidence) -> str:
    """The report; every text is escaped, since names and log lines may hold anything."""
    from jinja2 import Environment

    text = files("meshwright.render").joinpath(TEMPLATE).read_text(encoding="utf-8")
    culprits = frozenset(rank for finding in diagnosis.findings[:1] for rank in finding.ranks)
    pictures = _pictures(evidence)
    environment = Environment(autoescape=True, trim_blocks=True)
    environment.filters["prose"] = _prose
    return (
        environment.from_string(text).render(
            diagnosis=diagnosis, headline=diagnosis.findings[0].title if diagnosis.findings else "Nothing wrong found",
            verdict=VERDICTS[diagnosis.verdict], orders=order_views(evidence, diagnosis), legend=legend(pictures),
            pictures=[(picture, svg_of(picture, culprits)) for picture in pictures],
            tables=[_plain(each) for each in step_tables(evidence, every_row=True)],
        )
        + "\n"
    )  # fmt: skip


def _prose(text: str) -> str:
    """Escaped, with what stands in backquotes set as code; the template takes it as it is."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _pictures(evidence: Evidence) -> list[Picture]:
    profile = evidence.derived(profile_of)
    found = [profiled_step(profile)] if profile is not None else []
    return found + [played_step(each) for each in evidence.derived(what_ifs)]


def _plain(each: StepTable) -> tuple[str, list[str], list[list[object]]]:
    return each.title, [column.header for column in each.columns], each.rows
