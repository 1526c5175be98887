"""Notices that a module or a parameter was exchanged after sharding. Needed by: model.resize_token_embeddings().

A new embedding is not in any flat buffer: no gradient of it is reduced, no optimizer steps it, and at stage 3 the old one
is what gets gathered.
"""

from ...errors import BadInput
from ..extra import Extra


class Registered(Extra):
    """Every parameter and submodule, where it stood when the model was sharded."""

    def __init__(self, stage):
        self.flats = () if stage.shards_parameters else stage.flats  # at stage 3 a parameter's memory comes and goes
        self.places = []  # (a module's dictionary, name in it, what stood there, name in the model)
        for prefix, module in stage.model.named_modules():
            for registered in (module._parameters, module._modules):
                self.places += [(registered, key, each, f"{prefix}.{key}" if prefix else key) for key, each in registered.items()]

    def check_step(self) -> None:
        """Raises BadInput that names what is not there any more, or was given other memory, as by `param.data = values`."""
        for registered, key, each, name in self.places:
            if registered.get(key) is not each:
                raise BadInput(f"{name!r} was exchanged after shard(), and no stage knows the new one: change the model first "
                               "(resize its embeddings, add its adapters), and shard it then")
        for flat in self.flats:
            memory = flat.full.untyped_storage()._cdata
            for key, param in flat.params.items():
                if param.untyped_storage()._cdata != memory:
                    raise BadInput(f"parameter {key!r} was given other memory after shard(), which no optimizer reaches: write into "
                                   "it under no_grad, as in param.copy_(values), instead of assigning param.data")
