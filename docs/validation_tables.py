"""The tables of validation.md, out of validation_figures.json, which benchmarks/validation_figures.py writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cog

from meshwright.spec.efficiency import CONSTANTS, fitted
from meshwright.spec.stack import STACKS, SWITCHES

FIGURES: dict[str, Any] = json.loads((Path(__file__).parent / "validation_figures.json").read_text(encoding="utf-8"))

MOE_ON_RACKS = (
    "MoE in an NVL72 rack: the recipe's CUDA graphs, dispatcher and fused permutation are not printed (missing input), and grouped products"
    " of these shapes are known from one kernel list only, in which they are slower."
)

EXPLAINED = {
    "titan-0": (
        "Context parallelism in torchtitan of 2024 takes 1.5 times as long from four ranks on; two ranks agree with one rank's kernel."
        " Repeated key and value heads, exposed exchanges and sums in fp32 would come to 1.1: model fault, or a fallback of that release."
    ),
    "nanotron-02": (
        "The smallest model of the sweep: elementwise chains of other eager sources are unfused, nanotron's are partly fused, which its"
        " text does not say. Model fault."
    ),
    "nanotron-0": (
        "A step of a third of a second on 256 GPUs with one micro-batch: gradients of one backward are reduced over 64 replicas. The fabric"
        " between nodes is not printed (missing input), and what is not hidden of so short a backward is uncertain."
    ),
    "mbridge-111": MOE_ON_RACKS,
    "mbridge-112": MOE_ON_RACKS,
    "mbridge-115": MOE_ON_RACKS,
    "mbridge-12": MOE_ON_RACKS,
    "mbridge-149": MOE_ON_RACKS,
    "mbridge-1": (
        "What the recipe recomputes, off-loads and overlaps is not printed for these releases (missing input); rows of one model and GPU"
        " differ by as much between two releases."
    ),
    "simumax-0": (
        "The B200 of this source sustain 0.47 to 0.50 of peak in the products of these very shapes, by its own kernel list, below what"
        " other sources' B200 and GB200 reach; eight tp ranks are bound by the host."
    ),
    "foundry-0": "Kernels of PyTorch 1.13 to 2.0 on a GPU that was new (level of the source), or a device whose memory was nearly full.",
    "seqsel": "Tensor parallelism overlaps its all_reduces with the weights' gradients in this source, which its profile does not.",
    "zb": "The vocabulary is not printed (missing input), and the head is a tenth of the last stage.",
}
"""Why a row is among the worst, by the beginning of its id."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _errors(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["0", *[""] * 6]
    numbers = [_percent(found[key]) for key in ("mape", "median", "p90", "worst")]
    return [str(int(found["count"])), *numbers, f"{100 * found['bias']:+.1f}", f"{100 * found['covered']:.0f}"]


def _table(head: list[str], rows: list[list[str]]) -> None:
    lines = ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *(f"| {' | '.join(row)} |" for row in rows), ""]
    cog.outl("\n".join(lines))


COLUMNS = ["figures", "mean", "median", "p90", "worst", "bias", "in the 90 % range"]


def summary() -> None:
    """Errors of left-out sources beside the baselines; in percent."""
    naive, rows = FIGURES["naive"], []
    rows.append(["dense, one utilisation per GPU generation and precision", "", *map(_percent, naive.values()), "", "", ""])
    rows.append(["dense, constants from kernel tables alone", *_errors(FIGURES["tables_only"])])
    for kind, words in (("dense", "dense"), ("moe", "MoE")):
        rows.append([f"**{words}**", *_errors(FIGURES[kind])])
        rows.append([f"{words}, doubtful rows too", *_errors(FIGURES[f"{kind}_with_doubtful"])])
        for name, told in ((f"{kind}_before", "those judged below, before"), (kind, "**after three runs of the source**")):
            rows.append([f"{words}, {told}", *_errors(FIGURES["calibrated"][name])])
    _table(["", *COLUMNS], rows)


def groups(name: str) -> None:
    """One row for each source, device or family; in percent."""
    _table(
        [name.removeprefix("by_").removesuffix("_clean"), *COLUMNS], [[f"`{key}`", *_errors(found)] for key, found in FIGURES[name].items()]
    )


MEMORY_KINDS = {
    "allocated": "allocator's peak, printed as such (`simumax`)",
    "unsaid": "taken for it: the source does not say (`nanotron`)",
    "reserved": "what the allocator has reserved (`titan`)",
    "device": "nvidia-smi's",
}


def memory() -> None:
    """Memory by what was printed, before and after three runs of the source; doubtful rows left out; in percent."""
    rows, calibrated = [], FIGURES["calibrated"]
    for kind, words in MEMORY_KINDS.items():
        if kind in calibrated:
            rows.append([words, *_errors(calibrated[f"{kind}_before"])])
            rows.append(["**after three runs of the source**", *_errors(calibrated[kind])])
    _table(["printed", *COLUMNS], rows)


def order() -> None:
    """Pairs, choices, and what fits."""
    found, fits, calibrated = FIGURES["ranking"], FIGURES["fits"], FIGURES["calibrated"]
    regret, alike = _percent(found["regret"]), found["correlation"]
    cog.outl(
        f"\nOf {found['pairs']:,} pairs of one source that differ by more than 3 %, {_percent(found['ordered'])} % are ordered rightly."
        f" Where a source\nhas several layouts of one model on one cluster ({found['choices']} times), ours takes"
        f" {regret} % longer than the best measured one\non average, and the mean rank correlation is {alike:.2f}."
        f" Of {fits['ran']} runs whose recomputation is stated,\n{fits['predicted_to_run']} are predicted to fit."
        f" After three runs the 90 % range of a dense step is ±{_percent(calibrated['dense']['half_width'])} % wide,"
        f" before it ±{_percent(calibrated['dense_before']['half_width'])} %.\n"
    )


def worst() -> None:
    """The ten rows that are furthest off, each with why."""
    rows = []
    for one in FIGURES["worst"]:
        why = next(text for begin, text in EXPLAINED.items() if one["id"].startswith(begin))
        error = f"{100 * (one['predicted_s'] / one['measured_s'] - 1):+.0f} %"
        what = f"{one['model']}, {one['device']}, `{one['layout']}`"
        rows.append([f"`{one['id']}`", what, f"{one['measured_s']} s", f"{one['predicted_s']} s", error, why])
    _table(["run", "what", "measured", "predicted", "error", "why"], rows)


def ablation() -> None:
    """Dense errors without each part; in percent."""
    rows = [[term, _percent(found["left_out"]), _percent(found["with_level"])] for term, found in FIGURES["ablation"].items()]
    _table(["without", "mean, source left out", "mean, with the source's level taken out"], rows)


def constants() -> None:
    """Every fitted constant: prior, value, meaning."""
    values, rows = fitted(), []
    for name, constant in CONSTANTS.items():
        if constant.spread:
            rows.append([f"`{name}`", f"{constant.prior:.3g}", f"{getattr(values, name):.3g}", constant.meaning, constant.source])
    cog.outl(
        f"\n{len(rows)} constants, none of a model, a run or a source; {len(STACKS)} stack profiles with {len(SWITCHES)} switches,"
        " each with its source:"
    )
    _table(["constant", "before any run", "fitted", "what it is", "source of the first"], rows)
