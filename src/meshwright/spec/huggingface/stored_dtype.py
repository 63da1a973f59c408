"""The dtype of a checkpoint's weights, from ``dtype`` and ``quantization_config``. It decides nothing in training."""

from __future__ import annotations

from meshwright.spec.huggingface.config import Config
from meshwright.spec.tables import Table

__all__ = ["QUANT_METHODS", "read_stored_dtype"]

_DTYPES = {
    "bfloat16": "bf16", "float16": "float16", "float32": "float32", "float64": "float64", "half": "float16", "float": "float32",
    "double": "float64",
}  # fmt: skip
"""torch's names of dtypes that a model may be built in; narrower ones come with a ``quantization_config``."""

_OF_BITS = {("int", 4): "int4", ("int", 8): "int8", ("float", 4): "fp4", ("float", 8): "fp8"}

QUANT_METHODS = ("fp8", "fbgemm_fp8", "mxfp4", "gptq", "awq", "bitsandbytes", "compressed-tensors", "modelopt")
"""Methods whose weights have one known width. What a method leaves unquantised (head, norms) is not told apart."""


def read_stored_dtype(config: Config) -> str:
    """The dtype of most weights: quantised if there is a quantization_config, else ``dtype``, else bf16.

    Nothing that is computed for training depends on it, so that bf16 is not told as assumed.
    """
    dtype = None
    for key in ("torch_dtype", "dtype"):  # transformers prefers the newer one
        config.allow_null(key)
        dtype = config.choice(key, _DTYPES, dtype)
    quantised = config.sub_table("quantization_config")
    if quantised is not None:
        return _read_quantised(quantised)
    return _DTYPES[dtype or "bfloat16"]


def _read_quantised(table: Table) -> str:
    default = "bitsandbytes" if "load_in_4bit" in table or "load_in_8bit" in table else None
    method = table.choice("quant_method", QUANT_METHODS) if default is None else table.choice("quant_method", QUANT_METHODS, default)
    if method in ("gptq", "awq"):
        return _OF_BITS["int", _read_bits(table, "bits")]
    if method == "bitsandbytes":
        return "int8" if table.flag("load_in_8bit", False) else "fp4"
    if method == "modelopt":
        return {"FP8": "fp8", "NVFP4": "fp4"}[table.choice("quant_algo", ("FP8", "NVFP4"))]
    if method == "compressed-tensors":
        return _read_groups(table)
    return "fp4" if method == "mxfp4" else "fp8"


def _read_groups(table: Table) -> str:
    """compressed-tensors: groups of layers, each with its format; they must agree."""
    groups = table.table("config_groups")
    found = set()
    for name in groups or ():
        group = groups.table(name) if groups else None
        weights = group.table("weights") if group else None
        if weights is not None:
            found.add(_OF_BITS[weights.choice("type", ("int", "float"), "int"), _read_bits(weights, "num_bits")])
    if len(found) > 1:
        table.note("config_groups", "groups of one width", problem=f"holds several widths: {', '.join(sorted(found))}")
    return found.pop() if found else "int4"


def _read_bits(table: Table, key: str) -> int:
    bits = table.integer(key, 4, low=2, high=16)
    if bits not in (4, 8):
        table.note(key, "4 or 8", problem="is a width that is not planned yet")
        return 4
    return bits
