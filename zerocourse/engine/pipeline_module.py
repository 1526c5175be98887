"""DeepSpeed's description of a pipeline: a list of layers, each built from its class and arguments. It communicates nothing.

    net = PipelineModule([LayerSpec(nn.Linear, 8, 8), nn.ReLU(), lambda x: x + 1, LayerSpec(nn.Linear, 8, 2)],
                         num_stages=2, loss_fn=nn.MSELoss())
    engine, *_ = zerocourse.initialize(model=net, config=config, training_data=dataset)
    loss = engine.train_batch()

Each rank builds all layers, on the CPU, and `initialize` leaves it those of its stage.
"""

import re
from collections.abc import Callable, Iterable

import torch
from torch import nn

from ..errors import BadInput
from ..parallel.pipeline.cutting import cut


class LayerSpec:
    """A layer that is built later: its class, and the arguments."""

    def __init__(self, typename: type[nn.Module], *module_args, **module_kwargs):
        if not (isinstance(typename, type) and issubclass(typename, nn.Module)):
            raise BadInput(f"LayerSpec got {typename!r}: it takes a class of torch.nn.Module, then its arguments")
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def build(self) -> nn.Module:
        return self.typename(*self.module_args, **self.module_kwargs)


class TiedLayerSpec(LayerSpec):
    """A layer that shares all of its parameters with the other layers of the same `key`.

    forward_fn(module, inputs): computes in place of the module's forward, as a head does with the embedding's weight.
    tied_weight_attr: accepted; what DeepSpeed ties are the weights of these names, and here it is the whole layer.
    """

    def __init__(self, key: str, typename: type[nn.Module], *module_args, forward_fn: Callable | None = None,
                 tied_weight_attr: str | list[str] = "weight", **module_kwargs):
        super().__init__(typename, *module_args, **module_kwargs)
        self.key, self.forward_fn, self.tied_weight_attr = key, forward_fn, tied_weight_attr


class CalledLayer(nn.Module):
    """A function as a layer; with a module, `function(module, inputs)`. As in DeepSpeed several inputs are one tuple."""

    def __init__(self, function: Callable, module: nn.Module | None = None):
        super().__init__()
        self.function, self.module = function, module

    def forward(self, *inputs):
        inputs = inputs[0] if len(inputs) == 1 else inputs
        return self.function(inputs) if self.module is None else self.function(self.module, inputs)


class PipelineModule(nn.Module):
    """The layers, how they are cut, and the loss. Raises BadInput for what our pipelines do not do.

    loss_fn(outputs, labels): a mean over the micro-batch.   seed_layers, base_seed: build each layer from a seed of its own.
    partition_method: "parameters", "uniform", or "type:REGEX" for equally many layers of matching classes.
    activation_checkpoint_interval: 0, or 1 for every layer.
    """

    def __init__(self, layers: Iterable, num_stages: int | None = None, topology=None, loss_fn: Callable | None = None,
                 seed_layers: bool = False, seed_fn: Callable[[int], object] | None = None, base_seed: int = 1234,
                 partition_method: str = "parameters", activation_checkpoint_interval: int = 0, **others):
        super().__init__()
        if topology is not None or num_stages is None:
            raise BadInput("PipelineModule needs num_stages=, and takes no topology=: the ranks are num_stages x data parallel, the stages "
                           "the slower axis; for tensor parallelism too use zerocourse.parallel.three_d")
        if loss_fn is None:
            raise BadInput("PipelineModule needs loss_fn=, which makes the loss of the last layer's output and the labels")
        if activation_checkpoint_interval not in (0, 1):
            raise BadInput(f"activation_checkpoint_interval is {activation_checkpoint_interval}: here it is 0, or 1 for every layer")
        unknown = sorted(key for key in others if key not in ("activation_checkpoint_func", "checkpointable_layers", "dynamic_shape"))
        if unknown:
            raise BadInput(f"PipelineModule has no argument {unknown[0]!r}")
        self.num_stages, self.loss_fn, self.recompute = num_stages, loss_fn, activation_checkpoint_interval == 1
        self.partition_method = partition_method
        built, tied = [], {}
        for number, spec in enumerate(layers):
            if seed_layers:
                (seed_fn or torch.manual_seed)(base_seed + number)
            built.append(build(spec, tied))
        self.layers = nn.ModuleList(built)

    def forward(self, *inputs):
        """All layers one after the other, on this process alone: before `initialize`."""
        for layer in self.layers:
            inputs = layer(*inputs)
            inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        return inputs if len(inputs) > 1 else inputs[0]

    def cuts(self) -> list[range]:
        """The layers of each stage. Raises BadInput for another partition_method."""
        method = self.partition_method.lower()
        if method == "uniform":
            costs = [1.0] * len(self.layers)
        elif method == "parameters":
            costs = [float(sum(param.numel() for param in layer.parameters() if param.requires_grad)) for layer in self.layers]
        elif method.startswith("type:"):
            names = [type(layer.module if isinstance(layer, CalledLayer) and layer.module is not None else layer).__name__ for layer in self.layers]
            costs = [float(bool(re.search(self.partition_method[5:], name, re.IGNORECASE))) for name in names]
        else:
            raise BadInput(f"partition_method is {self.partition_method!r}: it must be 'parameters', 'uniform' or 'type:REGEX'")
        return cut(costs, self.num_stages)


def build(spec: object, tied: dict[str, nn.Module]) -> nn.Module:
    if isinstance(spec, TiedLayerSpec):
        if spec.key not in tied:
            tied[spec.key] = spec.build()
        module = tied[spec.key]
        return CalledLayer(spec.forward_fn, module) if spec.forward_fn is not None else module
    if isinstance(spec, LayerSpec):
        return spec.build()
    if isinstance(spec, nn.Module):
        return spec
    if callable(spec):
        return CalledLayer(spec)
    raise BadInput(f"a layer of PipelineModule is a {type(spec).__name__}: it must be a LayerSpec, a module or a function")
