"""The dtype that a checkpoint is stored in."""

from __future__ import annotations

from typing import Any

import pytest

from changed_configs import only_mistake, read


@pytest.mark.parametrize(
    ("quantised", "dtype"),
    [
        ({"quant_method": "fp8", "fmt": "e4m3"}, "fp8"),
        ({"quant_method": "mxfp4"}, "fp4"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "int8"),
        ({"load_in_8bit": True}, "int8"),
        ({"load_in_4bit": True, "quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}, "fp4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}, "int4"),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}, "fp8"),
    ],
)
def test_quantisation_sets_the_stored_dtype_and_nothing_else(quantised: dict[str, Any], dtype: str) -> None:
    model = read(quantization_config=quantised)
    assert model.stored_dtype == dtype
    plain = read()
    assert plain.stored_dtype == "bf16"
    assert {**vars(model), "stored_dtype": "bf16"} == vars(plain)


@pytest.mark.parametrize(
    ("quantised", "key"),
    [
        ({"quant_method": "hqq"}, "quant_method"),
        ({}, "quant_method"),
        ({"quant_method": "gptq", "bits": 3}, "bits"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo"),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 6, "type": "float"}}}},
         "config_groups.a.weights.num_bits"),
        ({"quant_method": "compressed-tensors",
          "config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}, "b": {"weights": {"num_bits": 4, "type": "int"}}}},
         "config_groups"),
    ],
)  # fmt: skip
def test_quantisation_that_is_not_understood(quantised: dict[str, Any], key: str) -> None:
    assert only_mistake(quantization_config=quantised).key == f"quantization_config.{key}"


def test_dtype_and_its_older_name() -> None:
    assert read(torch_dtype="float16").stored_dtype == "float16"
    assert read(torch_dtype="float16", dtype="float32").stored_dtype == "float32"
    assert read(without=("torch_dtype",)).stored_dtype == "bf16"
    assert only_mistake(dtype="auto").key == "dtype"
