"""A cluster: one kind of device, joined by tiers of network, innermost first.

Bandwidth is always per direction and per GPU: a vendor's "900 GB/s NVLink" is 450 here.
"""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.spec.network import MeasuredCurve


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator.

    Attributes:
        memory_bytes: what the device has; hbm_bandwidth_bytes_per_s: its peak rate.
        peak_flops_per_s: dense peak by dtype as (dtype, flops/s) pairs: "bf16", "float16", "fp8", "float32", ...
        reserved_bytes: CUDA context and communication buffers, never available to the allocator.
        power_w: board power limit; None where it is not known.
    """

    name: str
    memory_bytes: int
    hbm_bandwidth_bytes_per_s: float
    peak_flops_per_s: tuple[tuple[str, float], ...]
    reserved_bytes: int
    vendor: str = "nvidia"
    generation: str = ""
    power_w: float | None = None
    source: str = ""

    def peak(self, dtype: str) -> float | None:
        """Dense peak for ``dtype`` in flops/s, None if the device has no such unit."""
        return dict(self.peak_flops_per_s).get(dtype)


@dataclass(frozen=True, kw_only=True)
class Tier:
    """One level of the network: units of ``size`` GPUs inside which it connects.

    Attributes:
        size: GPUs in one unit of this tier; None for the outermost, which holds any number.
        bandwidth_bytes_per_s: per direction and GPU into this tier (the GPU's share of the node's NICs).
        pair_bandwidth_bytes_per_s: where GPUs are wired to each other and not to a switch (xGMI, NVLink of the DGX-1), what
            one pair gets per direction: a group of n ranks moves at most n-1 times that. None behind a switch.
        latency_s: of one message step between two GPUs of this tier.
        oversubscription: 1 for a full-bisection fabric; 2 halves what each GPU gets when all send at once.
        in_network_reduction: an all_reduce needs one pass through the switch (NVLS, SHARP).
        curves: fitted to collectives measured in this tier, () where nobody has; network: the name they go by. They price what
            they were fitted to, the figures above everything else.
    """

    name: str
    size: int | None
    bandwidth_bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0
    in_network_reduction: bool = False
    pair_bandwidth_bytes_per_s: float | None = None
    network: str = ""
    curves: tuple[MeasuredCurve, ...] = ()
    source: str = ""

    def __hash__(self) -> int:
        # Tiers are keys of the price's cache; the dataclass's own would go through every constant of every curve.
        return hash((self.name, self.bandwidth_bytes_per_s, self.latency_s))

    @property
    def loaded_bandwidth_bytes_per_s(self) -> float:
        """What each GPU gets when all of them send at once."""
        return self.bandwidth_bytes_per_s / self.oversubscription


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices and the tiers that join them; ``num_gpus`` is None where the catalog leaves it to the user."""

    name: str
    device: Device
    tiers: tuple[Tier, ...]
    num_gpus: int | None = None
    source: str = ""

    @property
    def gpus_per_node(self) -> int:
        """GPUs in the innermost tier that connects more than one, the unit of "inside the node"."""
        return next((tier.size for tier in self.tiers if tier.size is not None and tier.size > 1), 1)
