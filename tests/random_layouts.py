"""Random layouts for the tests of mesh and rules."""

from itertools import permutations

from hypothesis import strategies as st

from meshwright.spec.layout import ORDER_AXES, Layout

ORDERS = ["-".join(order) for order in permutations(ORDER_AXES)]
DEGREES = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 6])


@st.composite
def layouts(draw: st.DrawFn, orders: list[str] = ORDERS, max_world: int = 600) -> Layout:
    """A layout whose degrees multiply out; ep and etp divide the fold, ulysses divides cp."""
    degrees: dict[str, int] = {}
    room = max_world
    for axis in ("tp", "cp", "dp_shard", "dp_replicate", "pp"):
        degree = draw(DEGREES)
        degrees[axis] = degree if degree <= room else 1
        room //= degrees[axis]
    fold = degrees["tp"] * degrees["cp"] * degrees["dp_shard"]
    etp = draw(st.sampled_from(_divisors(fold)))
    ep = draw(st.sampled_from(_divisors(fold // etp)))
    ulysses = draw(st.sampled_from(_divisors(degrees["cp"])))
    return Layout(**degrees, etp=etp, ep=ep, ulysses=ulysses, cp_kind="usp", order=draw(st.sampled_from(orders)))


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
