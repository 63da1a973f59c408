"""Milliseconds of one ``estimate`` in process, in closed form, over a thousand different legal layouts of four models.

Nothing of one layout can be reused for the next but what depends on the model alone: every layout is priced once.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from meshwright.estimate import estimate
from meshwright.search.evaluate import COLUMN_RULES
from meshwright.search.space import Space
from meshwright.spec.layout import Layout
from meshwright.spec.load_cluster import resolve_cluster
from meshwright.spec.load_model import resolve_model
from meshwright.spec.rules import Case, legal
from meshwright.spec.workload import Training

MODELS = ("llama-3.1-70b", "gpt3-175b", "qwen3-235b-a22b", "deepseek-v3")
EACH = 250
GPUS = 512


def main() -> None:
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, {len(COLUMN_RULES)} rules per column")
    cluster = resolve_cluster("h100-sxm")
    for name in MODELS:
        model = resolve_model(name)
        workload = Training(seq=min(4096, model.max_positions), batch=1024)
        layouts = legal_layouts(Space(model, workload, GPUS))
        times_s = []
        for layout in layouts:
            start = time.perf_counter()
            estimate(model, cluster, workload, layout, closed_form=True)
            times_s.append(time.perf_counter() - start)
        spread = statistics.quantiles(times_s, n=10)
        print(f"{name}: {len(layouts)} layouts, median {1e3 * statistics.median(times_s):.2f} ms, p90 {1e3 * spread[-1]:.2f} ms")


def legal_layouts(space: Space) -> list[Layout]:
    """EACH layouts, spread over the space."""
    found: list[Layout] = []
    for pp, cp_kind, sp in space.structures():
        column = space.column(pp, cp_kind, sp)
        for schedule, v, stages in space.schedules(pp):
            for index in range(0, len(column), 97):
                layout = column.layout(index)
                values = {**vars(layout), "schedule": schedule, "virtual_stages": v, "stages": stages, "zero": index % 4}
                layout = Layout(**values)
                if legal(Case(model=space.model, workload=space.workload, layout=layout)):
                    found.append(layout)
    return found[:: max(1, len(found) // EACH)][:EACH]


if __name__ == "__main__":
    main()
