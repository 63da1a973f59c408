"""Which stack profile a published run had: told by its source's own words and year, never by its time."""

from __future__ import annotations

from dataclasses import replace

from meshwright.spec.model import Model
from meshwright.spec.stack import STACKS, Stack
from meshwright.validate.runs import Run

RULES: tuple[tuple[str, str, tuple[int, int]], ...] = (
    (r"nanotron", "nanotron", (0, 9999)),
    (r"foundry|composer|mosaic", "fsdp-2023", (0, 9999)),
    (r"fms|fsdp-?1\b|pytorch fsdp", "fsdp-2024", (0, 9999)),
    (r"torchtitan", "torchtitan", (0, 9999)),
    (r"automodel", "automodel", (0, 9999)),
    (r"internevo|internlm", "megatron-2023", (2023, 9999)),  # flash attention 2, fused norms and cross-entropy
    (r"ulysses|deepspeed(?!.*megatron)", "deepspeed", (2023, 9999)),
    (r"megatron|narayanan|korthikanti|bigscience|bloom|dlperf|opt-175|glm", "megatron-2021", (0, 2022)),
    # its memory formula, 34 s b h + 5 a s^2 b, is of materialised scores (arXiv 2401.10241, table 1)
    (r"zero bubble", "megatron-2021", (0, 9999)),
    (r"megascale", "megatron-2023", (0, 2024)),
    (r"megatron-?bridge|nemo", "megatron-bridge", (2024, 9999)),
    (r"megatron|nemo|llama|simumax|deepseek|nvidia", "megatron", (2023, 9999)),
    (r"fsdp", "fsdp", (0, 9999)),
)
"""(words in the source or the implementation, stack, first and last year); the first that holds."""


def stack_of(run: Run, model: Model) -> tuple[Stack, list[str]]:
    """The profile, with the switches that the row itself names; and whether it had to be guessed."""
    year = run.whole("year", 2025)
    fields = ("source", "impl_notes", "zero_stage_or_fsdp")
    name = next((stack for words, stack, (low, high) in RULES if low <= year <= high and run.says(words, *fields)), None)
    assumed = [] if name else ["stack of its year"]
    stack = STACKS[name or ("megatron-2021" if year < 2023 else "megatron")]
    if stack.name == "torchtitan":
        stack = replace(STACKS["fsdp"] if run.says(r"\beager\b", "impl_notes") else stack, selective_operators=True)
    return _as_said(run, stack), assumed


def _as_said(run: Run, stack: Stack) -> Stack:
    """Switches that a row's own words set otherwise than its framework's generation."""
    notes = ("impl_notes", "notes")
    if run.says(r"overlap all off|no overlap|overlap off", *notes):
        stack = replace(
            stack, hides_data_parallel=False, hides_parameter_gather=False, hides_context_parallel=False, hides_pipeline=False,
            hides_expert_parallel=False,
        )  # fmt: skip
    if run.says(r"reduc\w+ is not overlapped", *notes):
        stack = replace(stack, hides_data_parallel=False)
    if run.says(r"async ?tp\b|async comm", *notes):
        stack = replace(stack, hides_tensor_parallel=True)
    if run.says(r"deepep|hybridep|dualpipe", *notes, "schedule"):
        stack = replace(stack, fused_dispatch=True)
    if run.says(r"no flash attention", *notes):
        stack = replace(stack, attention_kernel="none")
    if run.says(r"token-?drop", "impl_notes", "notes", "model"):
        # Megatron-core's fused dispatchers take dropless routing only (token_dispatcher.py, MoEFlexTokenDispatcher, 2025).
        stack = replace(stack, static_routing=True, fused_dispatch=False)
    if run.says(r"cuda.?graph", *notes):
        stack = replace(stack, graphs=True)
    return stack
