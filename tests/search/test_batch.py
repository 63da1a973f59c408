"""A batch that keeps GPUs from working side by side is told, one that does not is not."""

import pytest

from meshwright.search.batch import awkward_batch


@pytest.mark.parametrize(
    ("batch", "gpus", "widest", "remedy"),
    [(36, 64, 4, "32 could be split over 32"), (7, 8, 1, "8 could be split over 8"), (1000, 1024, 8, "1,024 could be split over 1,024")],
)
def test_said(batch, gpus, widest, remedy):
    warning = awkward_batch(batch, gpus)
    assert f"over {widest} data-parallel ranks of {gpus:,} GPUs at most" in warning.message
    assert remedy in warning.remedy


@pytest.mark.parametrize(("batch", "gpus"), [(64, 64), (32, 64), (1536, 4096), (48, 64), (1, 8), (3, 2), (512, 4480), (126, 128 * 63)])
def test_not_said(batch, gpus):
    assert awkward_batch(batch, gpus) is None
