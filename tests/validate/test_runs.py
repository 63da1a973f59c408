"""Reading tables of runs: both forms, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.validate.runs import Run, Unjudgeable, read_runs

PUBLISHED = "id,kind,model,layers,hidden,seq_len,gpu,gpus,global_batch"
OWN = "id,model,cluster,layout,seq,batch,step_s"


def table(folder: Path, text: str) -> Path:
    path = folder / "runs.csv"
    path.write_text(text)
    return path


def test_both_forms(tmp_path: Path) -> None:
    (published,) = read_runs(table(tmp_path, f"{PUBLISHED}\nsc21-t1-003,train,GPT,36,4096,2048,A100,128,512\n"))
    assert published.published and published.source == "sc21" and published.whole("layers") == 36
    (own,) = read_runs(table(tmp_path, f"{OWN}\na,llama-3.1-8b,h100-sxm,dp=8,8192,64,4.5\n"))
    assert not own.published and own.source == "own" and own.number("step_s") == 4.5


@pytest.mark.parametrize(
    ("name", "source"), [("seqsel-t4-001", "seqsel"), ("seqsel-t5-009", "seqsel"), ("mlm-h100-01", "mlm-h100"), ("sc21-fig-3", "sc21"),
                         ("zb-012", "zb"), ("llama3-t4-001", "llama3"), ("nemo-longseq-004", "nemo-longseq")],
)  # fmt: skip
def test_tables_of_one_paper_are_one_source(name: str, source: str) -> None:
    assert Run({"id": name}).source == source


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,model\na,b\n", "lack"),
        ("", "lack"),
        (f"{OWN}\n", "no rows"),
        (f"{OWN}\na,m,c,l,1,1,1\na,m,c,l,1,1,1\n", "is given twice"),
        (f"{OWN}\n,m,c,l,1,1,1\n", "is empty"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_runs(table(tmp_path, text))


def test_a_missing_file_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_runs(tmp_path / "none.csv")


@pytest.mark.parametrize("cell", ["", "x", "-3", "nan", "inf", "1e300"])
def test_a_cell_that_is_no_positive_number(cell: str) -> None:
    with pytest.raises(Unjudgeable):
        Run({"id": "a", "dp": cell}).number("dp")


@pytest.mark.parametrize("cell", ["1.5", "0", "many"])
def test_a_cell_that_is_no_whole_number(cell: str) -> None:
    with pytest.raises(Unjudgeable):
        Run({"id": "a", "dp": cell}).whole("dp")
    assert Run({"id": "a", "dp": ""}).whole("dp", 4) == 4
