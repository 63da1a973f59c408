"""A software stack: which kernels it uses, what it saves for the backward, what it hides behind compute.

The ledger's counts follow DESIGN section 4.1 for every stack; a stack decides only saved bytes, kernels, overlap and how far
recomputation runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.spec.efficiency import Efficiency

FUSED_SAVES = frozenset({
    "norm_input", "norm_statistics", "linear_input", "qk_norm_input", "qkv", "attention_output", "attention_statistics",
    "gate_up_output", "down_input", "router_logits", "routing", "expert_input", "expert_gate_up_output",
    "expert_down_input", "expert_output", "latent", "token_ids", "probabilities",
})  # fmt: skip
"""What fused kernels keep per layer: 34 s b h bytes of a dense layer for GPT (Korthikanti et al., arXiv 2205.05198, section
4.1, without the dropout masks and the score matrix), 33.5 for Llama-3-70B; and of the loss 4 s b v, its softmax in fp32
(section 4.3)."""

EAGER_EXTRAS = frozenset({"silu_output", "norm_upcast"})
"""Intermediates that unfused eager kernels keep beside FUSED_SAVES."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """How a framework generation executes a layout.

    Attributes:
        saves: tags of the tensors that are kept for the backward.
        attention_kernel: "none" materialises the score matrix; "flash" does not.
        loss_kernel: what cross-entropy holds beside the logits. "in_place": nothing, their gradient takes their place (Transformer
            Engine, Liger); "softmax": the softmax in fp32, which becomes the gradient; "plain": torch's chain in fp32, which has the
            softmax, its gradient and theirs at once.
        hides_data_parallel: gradient reduction and FSDP gathers run behind compute.
        hides_parameter_gather: ZeRO-1's parameter all_gather runs behind the next forward.
        hides_context_parallel: ring exchanges run behind the attention of the block at hand.
        hides_tensor_parallel: gathers and scatters of tp run piece by piece beside the product that they belong to (async TP).
        hides_pipeline: pipeline sends run behind the compute of another micro-batch.
        hides_expert_parallel: dispatch and combine run behind the compute of another micro-batch.
        fused_dispatch: dispatch and combine send one copy of a token to each node, which hands it on (DeepEP), not one to each expert.
        recomputes_whole_layer: full recomputation repeats the layer to its end; else it stops at the last tensor that the
            backward needs (torch's non-reentrant checkpoint).
        fused_elementwise: norms, activations and residuals are one kernel each.
        static_routing: every expert has a fixed capacity (token dropping), or the sizes stay on the device: the host need not know them.
        graphs: layers are CUDA graphs: the host launches one of them and not every kernel.
        selective_operators: selective recomputation repeats every second product and all elementwise operations, not attention
            (torchtitan's operator-level activation checkpointing).
        efficiency: constants of the time model, None for the catalog's. level: factor on every step,
            1 until runs of one's own say otherwise.
            spread: standard deviation of the logarithm of measured over predicted, where runs of one's own tell it.
        base, file: of a calibrated stack, the name that it was made from and where it was written.
    """

    name: str
    saves: frozenset[str]
    attention_kernel: str = "flash"
    loss_kernel: Literal["in_place", "softmax", "plain"] = "softmax"
    hides_data_parallel: bool = True
    hides_parameter_gather: bool = True
    hides_context_parallel: bool = True
    hides_tensor_parallel: bool = False
    hides_pipeline: bool = False
    hides_expert_parallel: bool = False
    fused_dispatch: bool = False
    recomputes_whole_layer: bool = False
    fused_elementwise: bool = True
    static_routing: bool = False
    graphs: bool = False
    selective_operators: bool = False
    efficiency: Efficiency | None = None
    level: float = 1.0
    spread: float | None = None
    base: str = ""
    file: str = ""
    source: str = ""

    @property
    def framework(self) -> str:
        """The name of the stack that this one was calibrated from, or its own."""
        return self.base or self.name

    @property
    def said(self) -> str:
        """What ``--stack`` takes to mean it."""
        return self.file or self.name


STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack(name="megatron", saves=FUSED_SAVES, recomputes_whole_layer=True, loss_kernel="in_place",
              source="Megatron-core 2024 with Transformer Engine: fused norms, SwiGLU, flash attention and cross-entropy;"
              " --overlap-grad-reduce --overlap-param-gather"),
        Stack(name="megatron-deepep", saves=FUSED_SAVES, recomputes_whole_layer=True, loss_kernel="in_place", fused_dispatch=True,
              source="Megatron-core 2025 as megatron, with DeepEP: --moe-token-dispatcher-type flex --moe-enable-deepep"),
        Stack(name="megatron-bridge", saves=FUSED_SAVES, recomputes_whole_layer=True, loss_kernel="in_place", fused_dispatch=True,
              hides_tensor_parallel=True, hides_pipeline=True,
              source="performance recipes of NeMo 2024 and Megatron-Bridge 2025: tp_comm_overlap, overlap_p2p_comm, overlap_grad_reduce,"
              " overlap_param_gather; flex dispatcher with DeepEP or HybridEP"),
        Stack(name="automodel", saves=FUSED_SAVES, loss_kernel="in_place", fused_dispatch=True,
              source="NeMo AutoModel 2025 benchmark recipes: FSDP2, Transformer Engine's attention, linear layers and norms, DeepEP"),
        Stack(name="torchtitan", saves=FUSED_SAVES, loss_kernel="plain", attention_kernel="flash-2",
              source="torch.compile per block, FSDP2 prefetch, SDPA flash attention"),
        Stack(name="fsdp", saves=FUSED_SAVES | EAGER_EXTRAS, loss_kernel="plain", fused_elementwise=False, attention_kernel="flash-2",
              source="eager PyTorch FSDP2, SDPA flash attention"),
        Stack(name="deepspeed", saves=FUSED_SAVES | EAGER_EXTRAS, loss_kernel="plain", fused_elementwise=False, attention_kernel="flash-2",
              source="DeepSpeed ZeRO, overlap_comm"),
        Stack(name="meshwright", saves=FUSED_SAVES, hides_parameter_gather=False, source="this project's runtime"),
        Stack(name="megatron-2021", saves=FUSED_SAVES | {"scores", "dropout_masks"}, attention_kernel="none", recomputes_whole_layer=True,
              hides_data_parallel=False, hides_parameter_gather=False, hides_context_parallel=False,
              source="Narayanan et al., arXiv 2104.04473; Korthikanti et al., arXiv 2205.05198: no flash attention, gradient"
              " reduction after the last backward"),
        Stack(name="megatron-2023", saves=FUSED_SAVES, attention_kernel="flash-2", recomputes_whole_layer=True, loss_kernel="softmax",
              hides_parameter_gather=False, source="Megatron-LM 2023: --use-flash-attn, fused norms and bias-activation,"
              " --overlap-grad-reduce"),
        Stack(name="fsdp-2023", saves=FUSED_SAVES, attention_kernel="flash-1", loss_kernel="in_place", fused_elementwise=False,
              source="PyTorch 1.13 to 2.0 FSDP with Composer and llm-foundry's defaults: eager layers, attn_impl triton,"
              " low_precision_layernorm, fused_crossentropy"),
        Stack(name="fsdp-2024", saves=FUSED_SAVES, attention_kernel="flash-2", loss_kernel="plain",
              source="PyTorch 2.2 to 2.4 FSDP with torch.compile, SDPA flash attention"),
        Stack(name="nanotron", saves=FUSED_SAVES | EAGER_EXTRAS, attention_kernel="flash-2", loss_kernel="plain", fused_elementwise=False,
              hides_tensor_parallel=True, hides_parameter_gather=False,
              source="nanotron 2024 to 2025: eager layers with flash attention 2, asynchronous tp"),
    )
}  # fmt: skip
"""Stacks by the name that ``--stack`` takes."""

SWITCHES = tuple(
    name for name in Stack.__dataclass_fields__ if name not in ("name", "efficiency", "level", "spread", "base", "file", "source")
)
"""What a profile may say; each is told by the framework's own text."""

DEFAULT_STACK = "megatron"
