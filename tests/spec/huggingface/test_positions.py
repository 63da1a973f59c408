"""Rotary positions, in the three ways that configs write them."""

from __future__ import annotations

from typing import Any

import pytest

from changed_configs import only_mistake, read


def test_three_ways_to_write_positions() -> None:
    old = read(rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    new = read(without=("rope_theta", "rope_scaling"), rope_parameters={"rope_type": "linear", "factor": 4, "rope_theta": 500_000})
    both = read(rope_scaling={"type": "linear", "rope_type": "linear", "factor": 4.0})
    assert old == new == both
    assert old.rope.scaling == (("factor", 4.0), ("rope_type", "linear"))


def test_the_length_before_scaling_is_the_longest_sequence_unless_told() -> None:
    model = read("qwen3", rope_scaling={"rope_type": "yarn", "factor": 4.0})
    assert dict(model.rope.scaling)["original_max_position_embeddings"] == 4096


@pytest.mark.parametrize(
    ("scaling", "key"),
    [
        ({"rope_type": "longrope", "factor": 2.0}, "rope_type"),
        ({"rope_type": "proportional"}, "rope_type"),
        ({"type": "su"}, "type"),
        ({"rope_type": "linear"}, "factor"),
        ({"rope_type": "linear", "factor": 0.5}, "factor"),
        ({"rope_type": "yarn", "factor": 2.0, "beta_fst": 3}, "beta_fst"),
        ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0}, "high_freq_factor"),
        ({"rope_type": "default", "mrope_section": [1, 2, 3]}, "mrope_section"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2.0}, "type"),
        ({"rope_type": "default", "rope_theta": 3.0}, "rope_theta"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"full_attention": {"rope_type": "default"}}, "full_attention"),
    ],
)
def test_scalings_that_are_not_understood(scaling: dict[str, Any], key: str) -> None:
    assert only_mistake(rope_scaling=scaling).key == f"rope_scaling.{key}"


def test_part_of_a_head_is_not_rotated_in_these_families() -> None:
    assert only_mistake(partial_rotary_factor=0.5).key == "partial_rotary_factor"
    assert read(partial_rotary_factor=1.0) == read()
