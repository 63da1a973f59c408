"""The interleaved order against Megatron-LM's algorithm, stated again as its runtime steps through it.

megatron/core/pipeline_parallel/schedules.py: forward_backward_pipelining_with_interleaving, get_model_chunk_id and
get_pp_rank_microbatches, with a group of p micro-batches per model chunk.
"""

from __future__ import annotations

import pytest

from meshwright.schedule import build


def megatron_order(rank: int, p: int, v: int, m: int) -> list[str]:
    total = m * v
    warm_up = min((p - rank - 1) * 2 + (v - 1) * p, total)

    def chunk(virtual_id: int, forward: bool) -> int:
        turn = virtual_id % (p * v) // p
        return turn if forward else v - turn - 1

    def step(virtual_id: int, forward: bool) -> str:
        micro_batch = virtual_id // (p * v) * p + virtual_id % p
        return f"{chunk(virtual_id, forward) * p + rank}{'F' if forward else 'B'}{micro_batch}"

    order = [step(k, True) for k in range(warm_up)]
    for k in range(total - warm_up):
        order += [step(k + warm_up, True), step(k, False)]
    return order + [step(k, False) for k in range(total - warm_up, total)]


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 8), (4, 3, 16), (8, 5, 24), (3, 2, 9), (35, 3, 280)])
def test_interleaved_is_megatrons(p: int, v: int, m: int) -> None:
    schedule = build("interleaved", p, v, m)
    for rank in range(p):
        assert list(map(str, schedule.actions[rank])) == megatron_order(rank, p, v, m)
