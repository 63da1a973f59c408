"""Milliseconds of one ``estimate`` in process, in closed form and simulated, over a thousand different legal layouts of four models.

Milliseconds of this process's processor time, so that other programs do not count. ``new`` are layouts whose degrees were not met
before; ``known`` ones differ in schedule, stages or recompute from one that was, and share its blocks (estimate.priced).
"""

from __future__ import annotations

import os
import statistics
import sys
import time

from meshwright.estimate import _shared, estimate
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
        for closed_form in (True, False):
            _shared.cache_clear()
            times_s: dict[str, list[float]] = {"new": [], "known": []}
            for layout in layouts:
                met = _shared.cache_info().misses
                start = time.process_time()
                estimate(model, cluster, workload, layout, closed_form=closed_form)
                taken_s = time.process_time() - start
                times_s["new" if _shared.cache_info().misses > met else "known"].append(taken_s)
            told = [f"{len(found)} {what} median {1e3 * statistics.median(found):.2f} ms" for what, found in times_s.items() if found]
            all_s = times_s["new"] + times_s["known"]
            told.append(f"all median {1e3 * statistics.median(all_s):.2f}, mean {1e3 * statistics.mean(all_s):.2f} ms")
            print(f"{name}, {'closed form' if closed_form else 'simulated'}: {', '.join(told)}")


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
