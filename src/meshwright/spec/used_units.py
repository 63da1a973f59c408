"""How much of each node a job takes where nodes have no power of two of GPUs: 64 of the 72 in a rack of NVL72."""

from __future__ import annotations

from dataclasses import replace

from meshwright.spec.cluster import Cluster

__all__ = ["with_used_units"]


def with_used_units(cluster: Cluster, gpus: int) -> tuple[Cluster, str]:
    """The cluster as a job of ``gpus`` is placed on it, and what was assumed ("" for nothing).

    Groups of powers of two straddle units of 72, so that jobs which do not fill whole racks take 16 of a rack's 18 trays of four GPUs
    (NVIDIA, Slurm block scheduling for GB200: ``--segment=16``). Units of a power of two, as of eight, are taken as they are.
    """
    size = cluster.gpus_per_node
    used = 1 << (size.bit_length() - 1)
    if used == size or gpus <= size or gpus % size == 0 or gpus % used:
        return cluster, ""
    tiers = tuple(replace(tier, size=tier.size // size * used if tier.size and tier.size >= size else tier.size) for tier in cluster.tiers)
    said = f"{used} of the {size} GPUs of each {cluster.tiers[0].name} domain: {gpus:,} are no multiple of {size}"
    return replace(cluster, tiers=tiers), said
