"""From files of measured collectives to a cluster: what ``meshwright calibrate`` does, without printing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.calibrate import bench_file, nccl_tests
from meshwright.calibrate.cluster import Calibrated, calibrate, cluster_text
from meshwright.calibrate.device_names import cluster_named, devices_named
from meshwright.calibrate.network import Point
from meshwright.catalog import list_names
from meshwright.errors import InputError, Mistake
from meshwright.spec.cluster import Cluster
from meshwright.spec.files import read_text
from meshwright.spec.load_cluster import resolve_cluster


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A calibrated cluster.

    Attributes:
        base: what it was before. curves: what is new. text: the file.
    """

    base: Cluster
    cluster: Cluster
    curves: tuple[Calibrated, ...]
    points: int

    @property
    def text(self) -> str:
        """The cluster's file."""
        return cluster_text(self.cluster)

    def as_json(self) -> dict[str, object]:
        """The keys of the command's answer."""
        return {"base": self.base.name, "points": self.points, "curves": [curve.as_json() for curve in self.curves]}


def fit_files(files: Sequence[Path], name: str, cluster: str | None = None, op: str | None = None, ranks: int | None = None) -> Calibration:
    """Read every file and fit all of their points together.

    Args:
        name: of the new cluster.
        cluster: a catalog name or a TOML file; None to go by the device that the files name.
        op, ranks: for nccl-tests output that does not say them.

    Raises:
        InputError: with file, line and reason of everything that is wrong.
    """
    mistakes: list[Mistake] = []
    points: list[Point] = []
    devices: list[str] = []
    for file in files:
        try:
            text = read_text(file, "the output of nccl-tests, or bench.jsonl")
            jsonl = text.lstrip().startswith("{")
            points += bench_file.parse(text, str(file)) if jsonl else nccl_tests.parse(text, str(file), op, ranks)
            devices += devices_named(text)
        except InputError as error:
            mistakes += error.mistakes
    if mistakes:
        raise InputError(mistakes)
    base = resolve_cluster(cluster if cluster is not None else _cluster_of(dict.fromkeys(devices)))
    source = f"{', '.join(file.name for file in files)}: nccl-tests or bench_collectives, fitted by meshwright calibrate"
    fitted, curves = calibrate(base, points, name, source)
    return Calibration(base=base, cluster=fitted, curves=curves, points=len(points))


def _cluster_of(devices: dict[str, None]) -> str:
    known = {cluster_named(device) for device in devices}
    found = known.pop() if len(known) == 1 else None
    if found is not None:
        return found
    hint = "say which cluster was measured: a name, or a TOML file with its device and tiers"
    said = ", ".join(devices) or None
    problem = "is not told by the device's name" if said else "is missing, and no device is named in the output"
    raise InputError([Mistake("command line", "--cluster", said, ", ".join(list_names("clusters")), hint, problem)])
