"""Fit the network tables of the catalog again: ``python benchmarks/fit_network.py [--write]``.

Reads the published NCCL tables of data/hardware_facts.csv (see tests/nccl_facts.py) and prints for each device
generation the error of held-in points, with one size left out and with one group size left out.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from meshwright.calibrate.network import median_error  # noqa: E402
from meshwright.calibrate.network_file import table  # noqa: E402
from nccl_facts import across_nodes_fit, in_node_fits  # noqa: E402

NAMES = {"a100": "a100-sxm", "h100": "h100-sxm", "h200": "h200-sxm", "b200": "b200-sxm", "gb200": "gb200-nvl72"}
VERSIONS = {"a100": "2.27.3", "h100": "2.29.2", "h200": "2.29.2", "b200": "2.29.2", "gb200": "2.29.2"}
COMMENT = "Fitted by benchmarks/fit_network.py; spec/network.py says what the constants mean."
ACROSS = "all_reduce bench of PyTorch, NCCL 2.27.7, 4 nodes with 8 x 50 GB/s EFA each; stas00/ml-engineering, network (2026)"


def main(write: bool) -> None:
    for generation, name in NAMES.items():
        fits = in_node_fits(generation)
        source = f"nccl-tests, NCCL {VERSIONS[generation]}, one node; ai-dynamo/aiconfigurator systems data (Apache-2.0, 2026)"
        text = table(name, fits, source, COMMENT)
        for what in ("errors", "left_out_size_errors", "left_out_group_errors"):
            errors = [error for fit in fits for error in getattr(fit, what)]
            print(f"{name:12} {what:22} {len(errors):4} points, median {median_error(errors):.1%}, worst {max(map(abs, errors)):.0%}")
        if generation == "b200":
            text += table(name, [across_nodes_fit()], ACROSS).split("\n", 1)[1]
        if write:
            (ROOT / "src/meshwright/catalog/network" / f"{name}.toml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main("--write" in sys.argv[1:])
