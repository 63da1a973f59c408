"""The tree at the end of README.md names every part of the package once, with a comment, and nothing that is not there."""

from __future__ import annotations

import re

import pytest

from shared_data import ROOT

PACKAGE = ROOT / "src" / "meshwright"
UNTOLD = {"__init__.py", "__init__.pyi", "__main__.py", "py.typed", "__pycache__"}
ENTRY = re.compile(r"(?P<indent> *)(?P<name>\S+)(?: {2,}(?P<comment>\S.*))?")


def tree() -> list[tuple[str, str | None]]:
    """(path from the root, comment) of every line of the tree."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("## The tree", 1)[1].split("```")[1].strip("\n")
    entries = []
    folder = ""
    for line in block.split("\n"):
        match = ENTRY.fullmatch(line)
        assert match is not None, line
        if not match["indent"]:
            folder = match["name"]
        entries.append(((folder if match["indent"] else "") + match["name"], match["comment"]))
    return entries


def missing(entries: list[tuple[str, str | None]]) -> set[str]:
    """Modules and packages that the tree leaves out."""
    told = {path.removeprefix("src/meshwright/").rstrip("/") for path, _ in entries}
    there = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    return there - told - UNTOLD


def test_every_entry_is_there() -> None:
    assert [path for path, _ in tree() if not (ROOT / path).exists()] == []


def test_every_entry_has_a_comment() -> None:
    assert [path for path, comment in tree() if comment is None] == ["src/meshwright/"]


def test_nothing_is_missing() -> None:
    assert missing(tree()) == set()


def test_a_missing_part_is_seen() -> None:
    without = [entry for entry in tree() if entry[0] != "src/meshwright/ledger/"]
    assert missing(without) == {"ledger"}


@pytest.mark.parametrize("page", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    """Links to other pages and pictures of the repository."""
    path = ROOT / page
    links = re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_page_is_in_the_sites_menu() -> None:
    menu = set(re.findall(r"- (?:[^:\n]+: )?(\S+\.md)", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert menu == pages


def test_every_page_is_linked_from_the_first() -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")} - {"index.md"}
    assert pages - set(re.findall(r"\]\(([^)#]+\.md)", text)) == set()
