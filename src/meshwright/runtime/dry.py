"""One rank of a job that is not there: a process group that only counts, and tensors that have shapes but no storage.

Everything above torch runs as it is, at the true size of the model and of the job; a recorder sees what the rank would
send. What depends on values has none: loads of experts come from outside (parallel.experts.Load).

    with fake_job(rank=777, world_size=16384) as fake:
        network = Network(device="meta")        # FSDP2 is applied here: it refuses fake tensors
        with fake:
            network.to_empty(device="cpu")      # everything else is built and run here
            with Recorder(...): ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode


@contextmanager
def fake_job(rank: int, world_size: int) -> Iterator[FakeTensorMode]:
    """Be ``rank`` of ``world_size`` inside the ``with``; yields the mode under which tensors have no storage.

    Raises:
        RuntimeError: the process is a rank of a real job already.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore  # its import registers the backend

    if dist.is_initialized():
        raise RuntimeError("a rank of a real job cannot be a rank of a fake one too")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield FakeTensorMode(allow_non_fake_inputs=True)
    finally:
        dist.destroy_process_group()
