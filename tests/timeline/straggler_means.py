"""Makes data/straggler.json from the published traces: ``python straggler_means.py FOLDER`` (needs pyarrow).

The traces belong to "Understanding Stragglers in Large Model Training Using What-if Analysis" (arXiv 2505.05713): two jobs, one
row per operation. Kept here: the mean forward and backward of every worker, and how long the end of a step takes (the shortest
member of each group, the others being waited for).
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

END = ("grads-reduce-scatter", "embedding-grads-all-reduce", "optimizer-clip-main-grad", "optimizer", "params-all-gather")


def means(folder: Path, trial: str) -> dict[str, Any]:
    import pyarrow.parquet as parquet

    table = parquet.read_table(folder / f"trace-{trial}.parquet").to_pydict()
    durations: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for optype, dp, stage, duration in zip(table["optype"], table["dp_rank"], table["stage"], table["duration"], strict=True):
        durations[optype, dp, stage].append(duration)
    mean = {key: sum(values) / len(values) for key, values in durations.items()}
    pipelines, stages = (1 + max(table[column]) for column in ("dp_rank", "stage"))

    def grid(optype: str) -> list[list[float]]:
        return [[round(mean[optype, dp, stage], 6) for stage in range(stages)] for dp in range(pipelines)]

    end = sum(min(value for (optype, _, _), value in mean.items() if optype == name) for name in END)
    return {
        "micro_batches": 1 + max(table["mb_id"]),
        "forward_s": grid("forward-compute"),
        "backward_s": grid("backward-compute"),
        "end_s": round(end, 6),
    }


if __name__ == "__main__":
    found = {trial: means(Path(sys.argv[1]), trial) for trial in ("AR", "ST")}
    Path(__file__).with_name("data").joinpath("straggler.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
