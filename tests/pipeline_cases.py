"""Pipelined layouts to be proved: models deep enough for their chunks, and a list in which pairs of features meet.

python tests/pipeline_cases.py     writes tests/prove/pipelines.txt anew
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path

PIPELINES_FILE = Path(__file__).parent / "prove" / "pipelines.txt"

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from meshwright.errors import InputError  # noqa: E402
from meshwright.spec.layout import SCHEDULES, TWO_CHUNK_SCHEDULES, parse_layout  # noqa: E402
from meshwright.spec.model import Model  # noqa: E402
from meshwright.spec.rules import check  # noqa: E402
from proof_cases import Case, covering, pairs, random_cases  # noqa: E402
from proof_models import MODELS  # noqa: E402


@dataclass(frozen=True, kw_only=True)
class PipelineCase(Case):
    """A case whose model has a layer for each chunk, or as many as ``stages`` says; kinds of layers in turn."""

    @cached_property
    def model(self) -> Model:  # type: ignore[override]
        model = MODELS[self.family]
        number = sum(self.layout.stages) if self.layout.stages else self.layout.pp * self.layout.virtual_stages
        return replace(model, layers=tuple(islice(cycle(model.layers), max(number, len(model.layers)))))

    @cached_property
    def features(self) -> tuple[str, ...]:  # type: ignore[override]
        """Those of the schedule beside the others."""
        layout, model = self.layout, self.model
        ends = "tied" if model.tied_embeddings else "mtp" if model.mtp_layers else "apart"
        few = "few" if self.m < 2 * layout.pp else "many"
        stages = "even" if layout.stages is None else "no layer" if 0 in layout.stages else "uneven"
        schedule = f"pp={layout.pp}:{layout.schedule}*{layout.virtual_stages}"
        return (*super().features, layout.schedule, schedule, f"ends={ends}", f"micro-batches={few}", f"stages={stages}")


def read_pipeline_case(line: str) -> PipelineCase:
    """The inverse of ``str(case)``."""
    family, seq, m, dropout, layout = line.split(maxsplit=4)
    return PipelineCase(
        family=family, seq=int(seq.removeprefix("seq=")), m=int(m.removeprefix("m=")), dropout=dropout == "dropout",
        layout=parse_layout(layout),
    )  # fmt: skip


def read_pipelines() -> list[PipelineCase]:
    return [read_pipeline_case(line) for line in PIPELINES_FILE.read_text().splitlines() if line and not line.startswith("#")]


def random_pipelines(rng: random.Random) -> Iterator[PipelineCase]:
    """Legal pipelined cases without end: a case of few ranks with stages added."""
    bases = random_cases(rng, worlds=(1, 1, 2, 2, 4))
    while True:
        case = _with_stages(rng, next(bases))
        try:
            check(case.model, case.workload, case.layout)
        except InputError:
            continue
        yield case


def _with_stages(rng: random.Random, base: Case) -> PipelineCase:
    pp = rng.choice((2, 4) if base.layout.world_size <= 2 else (2,))
    schedule = rng.choice(SCHEDULES)
    v = 2 if schedule in TWO_CHUNK_SCHEDULES else rng.choice((2, 2, 3)) if schedule == "interleaved" else 1
    m = rng.choice({"dualpipe": (2 * pp, 2 * pp + 2), "dualpipe-v": (2 * pp, 2 * pp + 1), "interleaved": (pp, 2 * pp)}.get(
        schedule, (1, pp, pp + 1, 2 * pp + 1)))  # fmt: skip
    layout = replace(base.layout, pp=pp, schedule=schedule, virtual_stages=v, stages=_stages(rng, pp * v))
    return PipelineCase(family=base.family, seq=base.seq, m=m, layout=layout, dropout=base.dropout)


def _stages(rng: random.Random, chunks: int) -> tuple[int, ...] | None:
    """Even, or the first with one more, or nothing but the head on the last."""
    kind = rng.choice(("even", "even", "uneven", "no layer"))
    if kind == "even" or (kind == "no layer" and chunks < 3):
        return None
    return (2, *[1] * (chunks - 1)) if kind == "uneven" else (1,) * (chunks - 1) + (0,)


HEAD = """\
# What tests/prove/test_pipelines.py proves: model of proof_models.py (repeated until every chunk has its layers), tokens of a sequence,
# micro-batches of a rank, dropout, layout. Chosen by pipeline_cases.py out of {pool:,} random legal cases, so that pairs of features
# meet; written by `python tests/pipeline_cases.py`.
"""


def write_pipelines(seed: int = 1, pool: int = 6000, eight: int = 34, smaller: int = 52) -> None:
    """Choose anew."""
    cases = random_pipelines(random.Random(seed))
    drawn = list(dict.fromkeys(next(cases) for _ in range(pool)))
    chosen = covering(drawn, eight, smaller)
    PIPELINES_FILE.write_text(HEAD.format(pool=pool) + "".join(f"{case}\n" for case in chosen))
    seen, possible = (set().union(*map(pairs, cases)) for cases in (chosen, drawn))
    print(f"{len(chosen)} cases, {len(seen):,} of {len(possible):,} pairs")


if __name__ == "__main__":
    write_pipelines()
