"""Milliseconds of one ``estimate`` in process, in closed form and simulated, over a thousand different legal layouts of four models.

Milliseconds of this process's processor time, so that other programs do not count. ``new`` are layouts whose degrees were not met
before; ``known`` ones differ in schedule, stages or recompute from one that was, and share its blocks (estimate.priced). The simulated
ones grow with micro-batches x stages, of which the space has up to 32,768. Last, four questions of users, asked again and again.
"""

from __future__ import annotations

import os
import statistics
import sys
import time

import meshwright
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


QUESTIONS = (
    ("llama-3.1-70b", "h100-sxm", "tp=8 sp dp=1x8 zero=3 mb=1", 8192, 512),
    ("llama-3.1-70b", "h100-sxm", "tp=8 sp pp=4 dp=1x16 zero=1 mb=1", 8192, 512),
    ("gpt3-175b", "a100-sxm-80g", "tp=8 sp pp=8 dp=1x16 zero=1 mb=1", 2048, 1024),
    ("deepseek-v3", "h800-sxm", "ep=64 dp=1x256 zero=3 mb=1", 4096, 1024),
)


def ask_again() -> None:
    """``meshwright.estimate`` with texts: looked up, read, checked against the rules, priced, simulated."""
    for model, cluster, layout, seq, batch in QUESTIONS:
        times_s = []
        for _ in range(100):
            start = time.process_time()
            meshwright.estimate(model, cluster=cluster, layout=layout, seq=seq, batch=batch)
            times_s.append(time.process_time() - start)
        print(f"meshwright.estimate({model!r}, layout={layout!r}, ...): median {1e3 * statistics.median(times_s):.2f} ms")


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
    ask_again()
