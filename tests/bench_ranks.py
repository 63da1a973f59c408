"""What each rank of the bench test runs; a module of its own, since it imports torch."""

from meshwright.runtime.bench_collectives import lines, measure_all


def bench_text(sizes: list[int]) -> str:
    return lines(measure_all(sizes, rounds=2))
