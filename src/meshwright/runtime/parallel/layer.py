"""A decoder layer on a rank, and a multi-token-prediction layer: modules of their own, because a layer is a unit of data parallelism."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from meshwright.runtime.data_parallel.units import Leaves, add_parameters
from meshwright.runtime.groups import alone
from meshwright.runtime.parallel.attention import attention
from meshwright.runtime.parallel.linear import column_linear
from meshwright.runtime.parallel.mlp import mlp
from meshwright.runtime.parallel.moe_block import moe_block
from meshwright.runtime.parallel.norm import norm, rms_norm
from meshwright.runtime.parallel.setting import MicroBatch, Setting
from meshwright.runtime.recompute import recomputed
from meshwright.runtime.reference.weights import Weights
from meshwright.runtime.scope import in_module
from meshwright.spec import names
from meshwright.spec.model import LayerKind

LayerOutput = tuple[Tensor, Tensor | None, Tensor | None]
"""The stream [mb, S/(cp, tp), D]; the layer's balance loss; tokens per expert of this rank, int64 [E]. None where there are none."""


class Layer(nn.Module):
    """Decoder layer ``index`` (multi-token-prediction layer k has index L + k).

    Args:
        tensors: this rank's part of every parameter of the layer, by its name inside the layer; those not in ``trained`` become buffers.
        recompute_whole: forget everything inside the layer but its input.
    """

    def __init__(
        self, setting: Setting, index: int, kind: LayerKind, tensors: Mapping[str, Tensor], trained: set[str], recompute_whole: bool
    ) -> None:
        super().__init__()
        self.setting, self.index, self.kind, self.recompute_whole = setting, index, kind, recompute_whole
        add_parameters(self, tensors, trained)
        self._leaves = Leaves(self)

    @property
    def weights(self) -> Weights:
        """As they are now."""
        return self._leaves.now()

    def forward(self, x: Tensor, batch: MicroBatch) -> LayerOutput:
        """x [mb, S/(cp, tp), D]."""
        with in_module(names.layer(self.index)):
            return self.decode(x, batch)

    def decode(self, x: Tensor, batch: MicroBatch) -> LayerOutput:
        """The layer, recomputed or not."""

        def block(x: Tensor) -> LayerOutput:
            return decoder_layer(self.setting, self.weights, x, self.index, self.kind, batch)

        return recomputed(block, x) if self.recompute_whole else block(x)


class MtpLayer(Layer):
    """Multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2): joins the hidden state with a later token's embedding."""

    def forward(self, hidden: Tensor, batch: MicroBatch, later: Tensor | None = None) -> LayerOutput:
        """hidden, later: [mb, S/(cp, tp), D]; the result is normed for the head."""
        assert later is not None
        eps, weights = self.setting.model.norm_eps, self.weights
        with in_module(names.layer(self.index)):
            with in_module(names.MTP_NORM):
                both = (
                    rms_norm(hidden, weights[f"{names.MTP_NORM}.weight_hidden"], eps),
                    rms_norm(later, weights[f"{names.MTP_NORM}.weight_embedding"], eps),
                )
            with in_module(names.MTP_PROJECTION):
                x = column_linear(torch.cat(both, -1), weights[f"{names.MTP_PROJECTION}.weight"], None, alone("tp"))
            x, balance, counts = self.decode(x, batch)
            with in_module(names.MTP_NORM):
                return rms_norm(x, weights[f"{names.MTP_NORM}.weight_head"], eps), balance, counts


def decoder_layer(setting: Setting, weights: Weights, x: Tensor, index: int, kind: LayerKind, batch: MicroBatch) -> LayerOutput:
    """Attention, then MLP or experts, each on a norm of the stream x [mb, S/(cp, tp), D] and added to it."""
    model = setting.model
    with in_module(names.ATTENTION_NORM):
        normed = norm(x, weights, names.ATTENTION_NORM, model)
    x = x + batch.drop(attention(setting, weights, normed, index, kind, batch), setting, index, "attention.out")
    with in_module(names.MOE_NORM if kind.moe else names.MLP_NORM):
        normed = norm(x, weights, names.MOE_NORM if kind.moe else names.MLP_NORM, model)
    if not kind.moe:
        out = mlp(setting, weights, normed, names.GATE_UP, names.DOWN)
        return x + batch.drop(out, setting, index, "mlp.down"), None, None
    out, routed = moe_block(setting, weights, normed, index, batch)
    return x + batch.drop(out, setting, index, "mlp.down"), routed.balance, routed.counts
