"""The encoder is called by itself, before the model. Needed by: generation of Hugging Face's encoder-decoder models, such as T5.

Under stage 3 the encoder's own blocks are gathered as ever, and the root, whose embedding it uses, for its call. It
communicates that gather.
"""

import weakref

import torch
from torch import nn

from ...autograd.graph import current_backward
from ..extra import Extra


class EncoderAlone(Extra):
    def __init__(self, stage):
        gather_for_encoder(stage.model, stage)


def gather_for_encoder(model: nn.Module, of_model) -> None:
    """Let the encoder of an encoder-decoder model be called outside of the model, without gradients."""
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False) or not of_model.shards_parameters:
        return
    stage = weakref.ref(of_model)

    def is_alone() -> bool:
        return not stage().root.forward_depth and current_backward() == -1 and not torch.is_grad_enabled()

    def gather(*_) -> None:
        if is_alone():
            stage().unshard_unit(stage().root)

    def free(*_) -> None:
        if is_alone():
            stage().reshard_unit(stage().root)

    encoder = model.get_encoder()
    encoder.register_forward_pre_hook(gather)
    encoder.register_forward_hook(free, always_call=True)
