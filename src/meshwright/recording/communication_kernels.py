"""Tells communication kernels from others by their names: NCCL's and RCCL's, and those of the libraries that go past them.

A name that only sounds like communication counts as communication and is listed as unknown: a step must not look free of
communication because a library is new.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

__all__ = ["CommunicationKernel", "communication_kernel", "op_in_words"]


@dataclass(frozen=True, slots=True)
class CommunicationKernel:
    """What a kernel's name tells. op: torch.distributed's name, "" if the name does not say. known: the library's names are known here."""

    op: str
    library: str
    known: bool = True


_WORDS = (
    ("reduce_scatter", r"reduce[_ ]?scatter|rs_ring"),
    ("all_gather", r"all[_ ]?gather|(?<![a-z])ag_"),
    ("all_to_all", r"all[_ ]?(?:to|2)[_ ]?all|(?<![a-z])a2a"),
    ("all_reduce", r"all[_ ]?reduce|cross_device_reduce|userbuffers\w*_sum|(?<![a-z])ar_fusion"),
    ("send_recv", r"send[_ ]?recv|pushsend|pushrecv|(?<![a-z])p2p"),
    ("broadcast", r"broadcast|(?<![a-z])bcast"),
    ("all_to_all", r"dispatch|combine"),
    ("reduce", r"(?<![a-z])reduce"),
    ("barrier", r"barrier"),
)
"""Words of an op in a kernel's name (lower case), the longest first."""

_OF_LIBRARIES = (
    ("NCCL", r"nccl(?:Dev|Sym|Symk)*Kernel|ncclKernel|^nccl:|ncclTree|ncclRing|ncclAll"),
    ("RCCL", r"rccl\w*Kernel|msccl(?!pp)\w*Kernel"),
    ("MSCCL++", r"mscclpp"),
    ("NVSHMEM", r"nvshmem|rocshmem"),
    ("DeepEP", r"deep_?ep::(?!layout)|deep_?ep\w*(?:dispatch|combine|notify|barrier)"
               r"|(?:intranode|internode|internode_ll)::(?:dispatch|combine|notify|cached_notify|barrier)"),
    ("MoRI", r"mori::|Ep(?:Dispatch|Combine)\w*(?:Kernel|Node)"),
    ("pplx", r"pplx|a2a_(?:dispatch|combine)_(?:send|recv)"),
    ("TensorRT-LLM", r"(?:one|two)ShotAllReduce|lowPrecision(?:One|Two)Shot|moeA(?:ll|2)\w*|moe_comm::|ar_fusion::"
                     r"|allreduce_fusion_kernel|mnnvl\w*all"),
    ("Transformer Engine", r"userbuffers|kuserbuffers"),
    ("custom all-reduce", r"cross_device_reduce|quick_?reduce|allreduce_prototype|custom_?all_?reduce"),
    ("symmetric memory", r"multimem_|symm_mem|(?:one|two)_shot_all_?(?:reduce|gather)|all_?reduce_(?:one|two)_?shot"),
    ("oneCCL", r"oneccl|ccl::"),
    ("HCCL", r"hcom_|hccl"),
    ("gloo", r"^gloo:"),
    ("copy engine", r"^Memcpy PtoP|^CopyPeerToPeer"),
)  # fmt: skip
"""(library, names of its kernels), from the libraries' public sources and traces published with them. The first that matches wins."""

_SOUNDS_LIKE = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?(?:to|2)_?all|send_?recv|lamport|one_?shot|two_?shot|ibgda|ibrc|rdma|nvlink|nvls"
    r"|multicast|cross_?(?:device|rank|node)|inter_?node|intra_?node|peer_?(?:copy|access|mem|to)|p2p_|remote_(?:put|get)|put_signal|ring_exchange",
    re.IGNORECASE,
)
"""Words that hardly any kernel has that computes on its own device."""

_NOT = re.compile(r"warp_?all_?reduce|block_?all_?reduce", re.IGNORECASE)
"""Reductions inside one device, whose names say "all reduce"."""

_LIBRARIES = tuple((library, re.compile(pattern)) for library, pattern in _OF_LIBRARIES)
_OPS = tuple((op, re.compile(pattern)) for op, pattern in _WORDS)


@cache
def communication_kernel(name: str) -> CommunicationKernel | None:
    """What kind of communication a kernel of this name does, None for a kernel that computes or copies on its own device."""
    if _NOT.search(name):
        return None
    for library, pattern in _LIBRARIES:
        if pattern.search(name):
            if library == "copy engine":
                return CommunicationKernel("send", library)
            return CommunicationKernel(op_in_words(name), library)
    function = _without_arguments(name).partition("<")[0]  # template arguments name many things
    if _SOUNDS_LIKE.search(function):
        return CommunicationKernel(op_in_words(function), "unknown", known=False)
    return None


@cache
def op_in_words(name: str) -> str:
    """``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` -> ``all_reduce``; "" if no op is named."""
    # A camel hump counts as a gap between words: AllReduce is all_reduce.
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", _without_arguments(name)).lower()
    for op, pattern in _OPS:
        if pattern.search(spaced):
            return op
    return ""


def _without_arguments(name: str) -> str:
    return name.replace("(anonymous namespace)::", "").partition("(")[0]
