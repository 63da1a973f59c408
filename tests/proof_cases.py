"""Layouts to be proved: read from a list, drawn at random, or chosen so that every pair of features meets in one of them.

python tests/proof_cases.py     writes tests/prove/matrix.txt anew
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

MATRIX_FILE = Path(__file__).parent / "prove" / "matrix.txt"

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from meshwright.errors import InputError  # noqa: E402
from meshwright.spec.layout import CP_KINDS, DEFAULT_ORDER, ORDER_AXES, Layout, parse_layout  # noqa: E402
from meshwright.spec.model import Model  # noqa: E402
from meshwright.spec.rules import check, padded_vocab  # noqa: E402
from meshwright.spec.rules.rule import kv_heads  # noqa: E402
from meshwright.spec.workload import Training  # noqa: E402
from proof_models import MODELS  # noqa: E402

DROPOUT = 0.1
LARGEST_SEQ = 48
"""Tokens of a sequence: a proof is about who sends what to whom, which more tokens would not change."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of the matrix: ``family  seq  m  dropout?  layout``. m: micro-batches of a rank."""

    family: str
    seq: int
    m: int
    layout: Layout
    dropout: bool = False

    @property
    def model(self) -> Model:
        return MODELS[self.family]

    @property
    def workload(self) -> Training:
        return Training(seq=self.seq, batch=self.m * self.layout.dp * self.layout.mb)

    @property
    def rate(self) -> float:
        return DROPOUT if self.dropout else 0.0

    def __str__(self) -> str:
        return f"{self.family:<14} seq={self.seq:<3} m={self.m} {'dropout' if self.dropout else '-':<8} {self.layout}"

    @cached_property
    def features(self) -> tuple[str, ...]:
        """What it exercises, one word for each of its aspects."""
        layout, model = self.layout, self.model
        shape = lambda n: "1" if n == 1 else "n"  # noqa: E731
        split = "whole" if layout.recompute_layers is None else "some"
        return (
            self.family,
            f"tp={layout.tp}",
            f"sp={layout.sp}" if layout.tp > 1 else "no tp",
            f"vocab={layout.vocab}",
            f"padded={padded_vocab(model, layout) > model.vocab_size}",
            f"kv copies={layout.tp > kv_heads(model)}",
            f"cp={layout.cp}:{layout.cp_kind}" if layout.cp > 1 else "no cp",
            f"dp={shape(layout.dp_replicate)}x{shape(layout.dp_shard)}",
            f"ranks={layout.world_size}",
            f"zero={layout.zero}{layout.zero_variant}",
            f"ep={layout.ep}",
            f"etp={'tp' if layout.etp == layout.tp else layout.etp}",
            f"expert copies={model.moe is not None and layout.edp > 1}",
            f"recompute={layout.recompute} {split}",
            f"order={'usual' if layout.order == DEFAULT_ORDER else 'other'}",
            f"mb={shape(layout.mb)}",
            f"m={shape(self.m)}",
            f"dropout={self.dropout}",
        )


def read_case(line: str) -> Case:
    """The inverse of ``str(case)``."""
    family, seq, m, dropout, layout = line.split(maxsplit=4)
    return Case(
        family=family, seq=int(seq.removeprefix("seq=")), m=int(m.removeprefix("m=")), dropout=dropout == "dropout",
        layout=parse_layout(layout),
    )  # fmt: skip


def read_matrix() -> list[Case]:
    return [read_case(line) for line in MATRIX_FILE.read_text().splitlines() if line and not line.startswith("#")]


def random_cases(rng: random.Random, worlds: tuple[int, ...] = (2, 3, 4, 6, 8)) -> Iterator[Case]:
    """Legal cases without end. What the rules refuse is drawn again, so every legal one can come."""
    while True:
        case = _draw(rng, rng.choice(worlds))
        try:
            check(case.model, case.workload, case.layout)
        except InputError:
            continue
        yield case


def _draw(rng: random.Random, world: int) -> Case:
    family = rng.choice(list(MODELS))
    tp, cp, replicate, shard = rng.choice(_shapes(world))
    kind = rng.choice(CP_KINDS) if cp > 1 else "zigzag"
    ulysses = {"ulysses": cp, "usp": 2 if cp == 4 else rng.choice((1, cp))}.get(kind, 1)
    sp = tp > 1 and rng.random() < 0.6
    moe = MODELS[family].moe
    fold = tp * cp * shard
    etp = rng.choice([d for d in (1, 2, 4) if fold % d == 0]) if moe and sp and rng.random() < 0.6 else tp
    ep = rng.choice([d for d in (1, 2, 4, 8) if fold % (d * etp) == 0] or [1]) if moe else 1
    zero, variant = rng.choice(((0, ""), (1, ""), (2, ""), (3, ""), (3, "local"), (3, "keep")))
    recompute, layers = rng.choice((("none", None), ("none", None), ("selective", None), ("full", None), ("full", 1)))
    layout = Layout(
        tp=tp, sp=sp, vocab=tp == 1 or rng.random() < 0.8, vocab_pad=rng.choice((1, 1, 1, 8)), cp=cp, cp_kind=kind, ulysses=ulysses,
        ep=ep, etp=etp, dp_replicate=replicate, dp_shard=shard, zero=zero, zero_variant=variant, mb=rng.choice((1, 1, 2)),
        recompute=recompute, recompute_layers=layers, order=_order(rng),
    )  # fmt: skip
    unit = 2 * cp * (tp if sp else 1)
    seq = unit * rng.choice([k for k in (1, 2, 3, 5) if 8 <= k * unit <= LARGEST_SEQ] or [1])
    return Case(family=family, seq=seq, m=rng.choice((1, 2, 3)), layout=layout, dropout=rng.random() < 0.2)


def _order(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return DEFAULT_ORDER
    axes = list(ORDER_AXES)
    rng.shuffle(axes)
    return "-".join(axes)


def _shapes(world: int) -> list[tuple[int, int, int, int]]:
    """(tp, cp, dp_replicate, dp_shard) with this product."""
    degrees = range(1, world + 1)
    return [
        (tp, cp, replicate, world // (tp * cp * replicate))
        for tp in degrees
        for cp in degrees
        for replicate in degrees
        if world % (tp * cp * replicate) == 0 and cp <= 4
    ]


def pairs(case: Case) -> set[tuple[str, str]]:
    return set(combinations(case.features, 2))


def covering(pool: list[Case], eight: int, smaller: int) -> list[Case]:
    """Of ``pool`` so many cases on 8 ranks and on fewer, each the one that adds most new pairs of features to the ones before.

    Where no new pair is left, they count anew, so that pairs meet in more than one case.
    """
    index = {pair: bit for bit, pair in enumerate(sorted(set().union(*map(pairs, pool))))}
    masks = {case: sum(1 << index[pair] for pair in pairs(case)) for case in pool}
    found: list[Case] = []
    for wanted, on_eight in ((eight, True), (smaller, False)):
        left = {case: mask for case, mask in masks.items() if (case.layout.world_size == 8) == on_eight}
        covered = 0
        for _ in range(wanted):
            best = max(left, key=lambda case: (left[case] & ~covered).bit_count())
            if not left[best] & ~covered:
                covered = 0
                best = max(left, key=lambda case: left[case].bit_count())
            covered |= left.pop(best)
            found.append(best)
    return found


HEAD = """\
# What tests/prove/test_matrix.py proves: model of proof_models.py, tokens of a sequence, micro-batches of a rank, dropout, layout.
# Chosen by proof_cases.py out of {pool:,} random legal cases, so that pairs of features meet; written by `python tests/proof_cases.py`.
"""


def write_matrix(seed: int = 1, pool: int = 8000, eight: int = 80, smaller: int = 130) -> None:
    """Choose anew."""
    cases = random_cases(random.Random(seed))
    drawn = list(dict.fromkeys(next(cases) for _ in range(pool)))
    chosen = covering(drawn, eight, smaller)
    MATRIX_FILE.write_text(HEAD.format(pool=pool) + "".join(f"{case}\n" for case in chosen))
    seen, possible = (set().union(*map(pairs, cases)) for cases in (chosen, drawn))
    print(f"{len(chosen)} cases, {len(seen):,} of {len(possible):,} pairs")


if __name__ == "__main__":
    write_matrix()
