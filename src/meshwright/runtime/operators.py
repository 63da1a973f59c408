"""c10d's and the functional collectives' operators: what their arguments say, in one form.

Names and arguments are those of torch 2.13's operator schemas (``torch._C._jit_get_all_schemas()``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup


@dataclass(frozen=True, slots=True)
class Call:
    """What an operator's arguments say. tensor: the one that the payload counts; several count as one flat tensor."""

    op: str
    tensors: tuple[Tensor, ...]
    group: Any
    reduce_op: str = ""
    peer: int | None = None
    tag: int | None = None
    input_splits: tuple[int, ...] = ()
    output_splits: tuple[int, ...] = ()
    asynchronous: bool = True
    factor: int = 1
    """Full tensor / the given one, where only a part of the full tensor is at hand."""


ROOTED = ("broadcast", "reduce", "gather", "scatter")


_Arguments = Mapping[str, Any]


_REDUCE_NAMES = {
    int(getattr(dist.ReduceOp.RedOpType, name)): name.lower()
    for name in ("SUM", "AVG", "MAX", "MIN", "PRODUCT", "PREMUL_SUM", "BAND", "BOR", "BXOR")
}


def _reduce_name(reduce_op: Any) -> str:
    """``sum`` of c10d's boxed ReduceOp, or of a functional operator's text."""
    return reduce_op.lower() if isinstance(reduce_op, str) else _REDUCE_NAMES[int(reduce_op.op())]


def flat_tensors(tensors: Iterable[Any]) -> tuple[Tensor, ...]:
    flat: list[Tensor] = []
    for tensor in tensors:
        flat.extend([tensor] if isinstance(tensor, Tensor) else flat_tensors(tensor))
    return tuple(flat)


def _c10d(op: str, payload: str) -> Callable[[_Arguments], list[Call]]:
    """Reader of a c10d operator; payload: the argument whose tensors are counted."""

    def read(arguments: _Arguments) -> list[Call]:
        value = arguments[payload]
        reduce_op = arguments.get("reduce_op")
        root = arguments.get("root_rank") if op in ROOTED else None
        return [
            Call(
                op, flat_tensors([value]), arguments["process_group"],
                reduce_op="" if reduce_op is None else _reduce_name(reduce_op), peer=root,
                asynchronous=bool(arguments.get("async_op", True)),
            )
        ]  # fmt: skip

    return read


def _p2p(op: str, peer: str) -> Callable[[_Arguments], list[Call]]:
    def read(arguments: _Arguments) -> list[Call]:
        return [Call(op, flat_tensors(arguments["tensors"]), arguments["process_group"], peer=arguments.get(peer), tag=arguments["tag"])]

    return read


def _group_size(group: Any) -> int:
    process_group = dist.distributed_c10d._resolve_process_group(group) if isinstance(group, str) else ProcessGroup.unbox(group)
    return process_group.size()


def _splits(given: Sequence[int], tensor: Tensor, group: Any) -> tuple[int, ...]:
    """Rows to or from each rank; operators leave equal splits out."""
    if given:
        return tuple(map(int, given))
    size = _group_size(group)
    return (tensor.shape[0] // size,) * size if tensor.dim() else ()


def _all_to_all_base(arguments: _Arguments) -> list[Call]:
    sent, received, group = arguments["input"], arguments["output"], arguments["process_group"]
    return [Call(
        "all_to_all", (sent,), group, asynchronous=bool(arguments.get("async_op", True)),
        input_splits=_splits(arguments["input_split_sizes"], sent, group),
        output_splits=_splits(arguments["output_split_sizes"], received, group),
    )]  # fmt: skip


def _all_to_all_list(arguments: _Arguments) -> list[Call]:
    sent, received = flat_tensors(arguments["input_tensors"]), flat_tensors(arguments["output_tensors"])
    return [Call(
        "all_to_all", sent, arguments["process_group"], asynchronous=bool(arguments.get("async_op", True)),
        input_splits=tuple(tensor.shape[0] for tensor in sent), output_splits=tuple(tensor.shape[0] for tensor in received),
    )]  # fmt: skip


def _functional(op: str, payload: str = "input", full: bool = False) -> Callable[[_Arguments], list[Call]]:
    """Reader of a functional operator. full: the payload is group-size times the input (all_gather)."""

    def read(arguments: _Arguments) -> list[Call]:
        group = arguments["group_name"]
        group = group if isinstance(group, str | torch.ScriptObject) else group.group_name
        value = arguments[payload]
        return [Call(
            op, flat_tensors([value]), group, reduce_op=_reduce_name(arguments.get("reduce_op", "")), peer=arguments.get("src"),
            factor=int(arguments["group_size"]) if full else 1,
        )]  # fmt: skip

    return read


def _functional_all_to_all(arguments: _Arguments) -> list[Call]:
    group = arguments["group_name"]
    return [Call(
        "all_to_all", (arguments["input"],), group, input_splits=_splits(arguments["input_split_sizes"], arguments["input"], group),
        output_splits=_splits(arguments["output_split_sizes"], arguments["input"], group),
    )]  # fmt: skip


def _functional_p2p(op: str, peer: str) -> Callable[[_Arguments], list[Call]]:
    def read(arguments: _Arguments) -> list[Call]:
        return [Call(op, (arguments["tensor"],), arguments["group_name"], peer=arguments[peer], tag=arguments["tag"])]

    return read


def _functional_batch(arguments: _Arguments) -> list[Call]:
    entries = zip(arguments["op_list"], arguments["peer_list"], arguments["tag_list"], arguments["tensors"], strict=True)
    return [
        Call("send" if "send" in op else "recv", (tensor,), arguments["group_name"], peer=peer, tag=tag)
        for op, peer, tag, tensor in entries
    ]


READERS: dict[str, Callable[[_Arguments], list[Call]]] = {
    "c10d::allreduce_": _c10d("all_reduce", "tensors"),
    "c10d::allreduce_coalesced_": _c10d("all_reduce", "tensors"),
    "c10d::_allgather_base_": _c10d("all_gather", "output_tensor"),
    "c10d::allgather_": _c10d("all_gather", "output_tensors"),
    "c10d::allgather_coalesced_": _c10d("all_gather", "output_lists"),
    "c10d::allgather_into_tensor_coalesced_": _c10d("all_gather", "outputs"),
    "c10d::_reduce_scatter_base_": _c10d("reduce_scatter", "input_tensor"),
    "c10d::reduce_scatter_": _c10d("reduce_scatter", "input_tensors"),
    "c10d::reduce_scatter_tensor_coalesced_": _c10d("reduce_scatter", "inputs"),
    "c10d::alltoall_base_": _all_to_all_base,
    "c10d::alltoall_": _all_to_all_list,
    "c10d::broadcast_": _c10d("broadcast", "tensors"),
    "c10d::reduce_": _c10d("reduce", "tensors"),
    "c10d::gather_": _c10d("gather", "input_tensors"),
    "c10d::scatter_": _c10d("scatter", "output_tensors"),
    "c10d::barrier": _c10d("barrier", "tensor"),
    "c10d::send": _p2p("send", "dst"),
    "c10d::recv_": _p2p("recv", "src"),
    "c10d::recv_any_source_": _p2p("recv", ""),
    "_c10d_functional::all_reduce": _functional("all_reduce"),
    "_c10d_functional::all_reduce_": _functional("all_reduce"),
    "_c10d_functional::all_reduce_coalesced": _functional("all_reduce", "inputs"),
    "_c10d_functional::all_reduce_coalesced_": _functional("all_reduce", "inputs"),
    "_c10d_functional::all_gather_into_tensor": _functional("all_gather", full=True),
    "_c10d_functional::all_gather_into_tensor_out": _functional("all_gather", full=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": _functional("all_gather", "inputs", full=True),
    "_c10d_functional::reduce_scatter_tensor": _functional("reduce_scatter"),
    "_c10d_functional::reduce_scatter_tensor_out": _functional("reduce_scatter"),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _functional("reduce_scatter", "inputs"),
    "_c10d_functional::all_to_all_single": _functional_all_to_all,
    "_c10d_functional::broadcast": _functional("broadcast"),
    "_c10d_functional::broadcast_": _functional("broadcast"),
    "_c10d_functional::isend": _functional_p2p("send", "dst"),
    "_c10d_functional::irecv": _functional_p2p("recv", "src"),
    "_c10d_functional::batch_p2p_ops": _functional_batch,
}
