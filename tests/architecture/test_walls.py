"""The two walls and the direction of the flow: that they hold, and that each check of them can fail.

The contracts themselves are in pyproject.toml and `make check` runs them; here they are run on copies of the package
with a violation planted in it.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

import grimp
import pytest

from shared_data import ROOT

HEAVY = ("torch", "ray", "transformers", "safetensors")

IMPORT_ALL = f"""
import importlib, pkgutil, sys
import meshwright

names = [m.name for m in pkgutil.walk_packages(meshwright.__path__, "meshwright.", onerror=lambda name: None)
         if m.name.split(".")[1] not in ("runtime", "__main__")]
for name in names:
    importlib.import_module(name)
print(len(names), *(name for name in {HEAVY!r} if name in sys.modules))
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its contracts, to plant things in."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def plant(copy: Path, where: str, code: str) -> None:
    (copy / "src" / "meshwright" / where).write_text(code)


@pytest.mark.dist
def test_no_module_outside_the_runtime_loads_torch(fresh_python):
    done = fresh_python("-c", IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    count, *heavy = done.stdout.split()
    assert int(count) > 10
    assert heavy == []


@pytest.mark.dist
def test_a_module_that_loads_torch_would_be_seen(copy, fresh_python):
    (copy / "src" / "torch.py").write_text("")  # stands for the real one, which takes seconds to load
    plant(copy, "spec/planted.py", "import torch\n")
    done = fresh_python("-c", IMPORT_ALL, src=copy / "src")
    assert done.stdout.split()[1:] == ["torch"], done.stderr


def broken_contracts(copy: Path, fresh_python) -> set[str]:
    """Names of the contracts that import-linter finds broken in ``copy``, cut where its output folds them."""
    program = "import sys; from importlinter.cli import lint_imports_command as run; sys.exit(run())"
    done = fresh_python("-c", program, "--no-cache", src=copy / "src", cwd=copy)
    text = " ".join(done.stdout.split())
    counts = text.rpartition("Contracts: ")[2]
    assert counts, done.stdout + done.stderr
    contracts = text.partition("dependencies.")[2].lstrip("- ").partition("Contracts: ")[0]
    pieces = contracts.replace(" KEPT", " KEPT\n").replace(" BROKEN", " BROKEN\n").splitlines()
    # What a contract ignores is told before the name of the next one, or after its own.
    told = [re.sub(r" ?\(\d+ ignored imports?\) ?", "", piece) for piece in pieces]
    broken = {piece.removesuffix(" BROKEN").strip() for piece in told if piece.endswith(" BROKEN")}
    assert f"{len(broken)} broken" in counts
    assert (done.returncode != 0) == bool(broken)
    return broken


NO_TORCH = "Nothing outside runtime imports torch, ray or transformers"
NOT_IMPORTED = "Nothing imports the runtime"
INDEPENDENT = "The runtime imports the inputs, mesh, schedule and recording, and nothing else of ours"
FLOW = "The flow has one direction"


@pytest.mark.dist
@pytest.mark.parametrize(
    ("where", "code", "contract"),
    [
        ("spec/planted.py", "import torch.distributed\n", NO_TORCH),
        ("render/planted.py", "def later():\n    from transformers import AutoConfig\n", NO_TORCH),
        ("planted.py", "import ray\n", NO_TORCH),
        ("cli/planted.py", "def later():\n    import meshwright.runtime\n", NOT_IMPORTED),
        ("runtime/planted.py", "from meshwright.catalog import path\n", INDEPENDENT),
        ("runtime/planted.py", "def later():\n    from meshwright.render.text import table\n", INDEPENDENT),
        ("spec/planted.py", "from meshwright.render.text import table\n", FLOW),
    ],
    ids=["torch", "lazy-transformers", "ray-at-top", "lazy-runtime", "runtime-catalog", "runtime-lazy-render", "spec-render"],
)
def test_a_planted_import_breaks_its_contract(where, code, contract, copy, fresh_python):
    plant(copy, where, code)
    if where == "planted.py":  # a new part of the package must be given its place in the flow first
        contracts = (copy / "pyproject.toml").read_text()
        (copy / "pyproject.toml").write_text(contracts.replace('"units | errors"', '"units | errors | planted"'))
    assert contract in broken_contracts(copy, fresh_python)


@pytest.mark.dist
def test_the_contracts_let_through_what_they_should(copy, fresh_python):
    code = "import torch\nfrom meshwright.errors import InputError\nfrom meshwright.spec.layout import Layout\n"
    plant(copy, "runtime/planted.py", code)
    assert broken_contracts(copy, fresh_python) == set()


def test_outside_the_runtime_only_the_declared_dependencies_are_imported():
    graph = grimp.build_graph("meshwright", include_external_packages=True, cache_dir=None)
    ours = {name for name in graph.modules if name.partition(".")[0] == "meshwright"}
    imported = {
        other for name in ours if not name.startswith("meshwright.runtime") for other in graph.find_modules_directly_imported_by(name)
    }
    foreign = {name.partition(".")[0] for name in imported - ours} - set(sys.stdlib_module_names)
    assert "click" in foreign
    assert foreign - {"pyarrow"} <= {"numpy", "click", "rich", "jinja2", "yaml"}
    # An optional extra, so that no other file may come to need it.
    assert [name for name in ours if "pyarrow" in graph.find_modules_directly_imported_by(name)] == ["meshwright.recording.operations"]


def imports_by_name(source: str) -> list[str]:
    """What ``source`` imports by calling import_module or __import__, as far as the text says it."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = [call for call in calls if ast.unparse(call.func).rpartition(".")[2] in ("import_module", "__import__")]
    return [ast.unparse(call.args[0]).lstrip("f").strip("'\"") for call in names]


def test_outside_the_runtime_nothing_foreign_is_imported_by_name():
    """Static contracts do not see ``import_module("torch")``."""
    files = [file for file in (ROOT / "src").rglob("*.py") if "runtime" not in file.parts]
    found = [name for file in files for name in imports_by_name(file.read_text())]
    assert found  # the command line finds its commands so
    assert [name for name in found if not name.startswith("meshwright.")] == []


def test_an_import_by_name_would_be_seen():
    assert imports_by_name("import importlib\ndef f():\n    return importlib.import_module('torch')") == ["torch"]
