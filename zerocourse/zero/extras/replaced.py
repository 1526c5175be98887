"""Notices that a module or a parameter was exchanged after sharding. Needed by: model.resize_token_embeddings().

A new embedding is not in any flat buffer: no gradient of it is reduced, no optimizer steps it, and at stage 3 the old one
is what gets gathered.
"""

from torch import nn

from ...errors import BadInput


class Registered:
    """Every parameter and submodule, where it stood when the model was sharded."""

    def __init__(self, model: nn.Module):
        self.places = []  # (a module's dictionary, name in it, what stood there, name in the model)
        for prefix, module in model.named_modules():
            for registered in (module._parameters, module._modules):
                self.places += [(registered, key, each, f"{prefix}.{key}" if prefix else key) for key, each in registered.items()]

    def check(self) -> None:
        """Raises BadInput that names what is not there any more, or other memory that a parameter was given."""
        for registered, key, each, name in self.places:
            if registered.get(key) is not each:
                raise BadInput(f"{name!r} was exchanged after shard(), and no stage knows the new one: change the model first "
                               "(resize its embeddings, add its adapters), and shard it then")


def refuse_other_memory(flats) -> None:
    """Raise BadInput for a parameter that was given other memory, as by `param.data = values`: no optimizer reaches it."""
    for flat in flats:
        memory = flat.full.untyped_storage()._cdata
        for key, param in flat.params.items():
            if param.untyped_storage()._cdata != memory:
                raise BadInput(f"parameter {key!r} was given other memory after shard(), which no optimizer reaches: write into "
                               "it under no_grad, as in param.copy_(values), instead of assigning param.data")
