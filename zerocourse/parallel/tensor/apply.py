"""Cuts a model's weights among the ranks of a group, in place, and puts the borders around the regions that were cut."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor, nn

from ...comm import Comm
from ...errors import BadInput
from ..same_samples import check_same_masks, check_same_samples
from . import regions
from .cuts import Cut, counts_here, gathered, sum_over_copies
from .masks import own_masks
from .plans import TensorPlan, plan_of
from .row import RowLinear
from .vocabulary import VocabularyEmbedding, cross_entropy


def tensor_parallel(model: nn.Module, comm: Comm | None = None, plan: TensorPlan | None = None,
                    sequence: bool = False) -> nn.Module:
    """Cut `model`, which every rank has whole, among the ranks of `comm`. Collective. Returns the model.

    Rank 0's values are sent to all (start-up traffic), and each rank keeps its part, so that the parts of any number of
    ranks are together, bit for bit, one process's model. Called with targets (or labels), it computes the loss without
    gathering logits; without them it returns the whole logits.

    Sends per layer and micro-batch 4 all-reduces of B·T·C elements, 8·B·T·C·(t - 1)/t in all, and one more where the
    layer is computed again for its backward (two, where that does not end before its last matrix, as torch's does).

    comm: by default of all ranks.   plan: which modules become what, for models that `plans` does not know.
    sequence: cut the tokens between the regions as well: norms, dropouts and residuals hold T/t tokens, and the same
    number of elements is sent.
    Afterwards an optimizer, or `shard(model, optimizer, comm=...)` over another axis, takes `model.parameters()`.
    Raises BadInput for names that match nothing, query heads that the ranks do not divide (of keys and values there may be
    fewer than ranks, if they divide the ranks), and parameters on the meta device.
    """
    comm = Comm() if comm is None else comm
    plan = plan_of(model, comm.world_size) if plan is None else plan
    check(model, plan, sequence)
    cutter = Cutter(model, comm)
    columns = [(layer, cutter.cut(name, 0, layer.out_features, columns.parts, columns.groups))
               for name, layer, columns in matches(model, plan.columns)]
    rows = [(name, layer, cutter.cut_inputs(name, layer, groups)) for name, layer, groups in matches(model, plan.rows)]
    for name, layer, _ in matches(model, dict.fromkeys(filter(None, (plan.embedding, plan.head)))):
        cutter.cut(name, 0, len(layer.weight))  # raises before anything is changed, too
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        comm.broadcast(value.data, name)
    for layer, cut in columns:
        cutter.replace(layer, cut, "weight", "bias")
        layer.out_features = len(layer.weight)
    for name, layer, cut in rows:
        cutter.replace(layer, cut, "weight")
        model.set_submodule(name, RowLinear(layer.weight, layer.bias, comm, name, sequence))
        if sequence and layer.bias is not None:
            sum_gradients(layer.bias, comm, f"{name}.bias")
    for name, module, _ in matches(model, dict.fromkeys(plan.entered)):
        enter(module, comm, name, regions.gather_in if sequence else regions.copy_in)
    for _, module, sizes in matches(model, plan.attributes):
        for attribute, size in sizes.items():
            setattr(module, attribute, size)
    for _, module, _ in matches(model, dict.fromkeys((*plan.random, *plan.dropouts * sequence))):
        own_masks(module, comm)
    if plan.embedding is not None:
        cut_embedding(model, plan.embedding, cutter)
    if plan.head is not None:
        cut_head(model, plan.head, cutter, sequence)
    if sequence:
        (first, block, _), *rest = matches(model, {plan.blocks: None})
        enter(block, comm, first, regions.split)
        for _, block, _ in rest:
            block.tokens_cut_by = comm.world_size  # a block that is given all tokens' places must know how many there are
        for name, norm, _ in matches(model, dict.fromkeys(plan.norms)):
            for key, param in norm.named_parameters():
                sum_gradients(param, comm, f"{name}.{key}")
    for param in model.parameters():
        param.counts_in_norm, param.tensor_rank = counts_here(param, comm), comm.rank
    same_samples(model, comm)
    return model


def check(model: nn.Module, plan: TensorPlan, sequence: bool) -> None:
    for name, param in model.named_parameters():
        if param.is_meta:
            raise BadInput(f"parameter {name} is on the meta device: tensor parallelism cuts values, so give the model its "
                           "values first")
        if hasattr(param, "tensor_cut"):
            raise BadInput(f"parameter {name} was cut before: a model is cut once, when it is still whole")
    for _ in matches(model, dict.fromkeys((*plan.entered, *plan.attributes, *plan.random, *(*plan.norms, *plan.dropouts) * sequence))):
        pass  # raises for a name without a module, before anything is changed
    if plan.head and not (hasattr(model, "loss_function") or hasattr(model, "loss")):
        raise BadInput(f"the plan cuts the head {plan.head}, and {type(model).__name__} has no `loss(logits, targets)` to replace: "
                       "leave the head whole (head=None), or compute the loss in such a method")
    if sequence and not (plan.blocks and plan.head):
        raise BadInput("sequence parallelism begins at the first block and ends at the head: the plan must name both")


def matches(model: nn.Module, wanted: dict) -> Iterator[tuple[str, nn.Module, object]]:
    """Name, module, and what is wanted of it. Raises BadInput where a name matches no module."""
    modules = dict(model.named_modules())
    for pattern, value in wanted.items():
        names = [name for name in modules if fnmatchcase(name, pattern) and name.count(".") == pattern.count(".")]
        if not names:
            raise BadInput(f"the plan names {pattern!r}, which matches no module of this {type(model).__name__}")
        for name in names:
            yield name, modules[name], value


class Cutter:
    """Replaces parameters by this rank's parts. One that several modules share is cut once, and stays shared."""

    def __init__(self, model: nn.Module, comm: Comm):
        self.model, self.comm = model, comm
        self.parts: dict[nn.Parameter, nn.Parameter] = {}

    def cut(self, name: str, dim: int, size: int, parts: int = 1, groups: int | None = None) -> Cut:
        try:
            return Cut.even(dim, size, self.comm.world_size, parts, groups)
        except BadInput as error:
            raise BadInput(f"{name}: {error}") from None

    def cut_inputs(self, name: str, layer: nn.Linear, groups: int | None) -> Cut:
        """Of a row layer, in whose sum each input must be once: only keys and values may be on several ranks."""
        cut = self.cut(name, 1, layer.in_features, groups=groups)
        if cut.has_copies:
            raise BadInput(f"{name}: {groups} query heads cannot be divided among {self.comm.world_size} ranks, because a head that "
                           f"several ranks have would be added up several times: use a number of ranks that divides {groups}")
        return cut

    def replace(self, module: nn.Module, cut: Cut, *names: str) -> None:
        for name in names:
            whole = getattr(module, name)
            if whole is None:
                continue
            if whole not in self.parts:
                part = nn.Parameter(cut.take(whole.detach(), self.comm.rank), whole.requires_grad)
                part.tensor_cut = cut
                if cut.has_copies and part.requires_grad:
                    part.register_hook(partial(sum_over_copies, cut=cut, comm=self.comm, unit=name))
                self.parts[whole] = part
            setattr(module, name, self.parts[whole])


def enter(module: nn.Module, comm: Comm, unit: str, border: Callable[[Tensor, Comm, str], Tensor]) -> None:
    """The first tensor that the module is called with passes the border."""

    def before(module, args, kwargs):
        if args:
            return (border(args[0], comm, unit), *args[1:]), kwargs
        name = next(name for name, value in kwargs.items() if isinstance(value, Tensor))
        return args, kwargs | {name: border(kwargs[name], comm, unit)}

    module.register_forward_pre_hook(before, with_kwargs=True)


def sum_gradients(param: nn.Parameter, comm: Comm, unit: str) -> None:
    """A replicated parameter that sees T/t tokens on each rank: its gradient is the sum over the ranks.

    Without it the copies would drift apart from the first step on, and nothing would tell.
    """
    if param.requires_grad:
        param.register_hook(lambda gradient: regions.all_reduce(gradient, comm, unit))


def cut_embedding(model: nn.Module, name: str, cutter: Cutter) -> None:
    layer = model.get_submodule(name)
    cut = cutter.cut(name, 0, layer.num_embeddings)
    cutter.replace(layer, cut, "weight")
    start = cut.by_rank[cutter.comm.rank][0].start
    model.set_submodule(name, VocabularyEmbedding(layer.weight, start, cutter.comm, name, layer.padding_idx))


def cut_head(model: nn.Module, name: str, cutter: Cutter, sequence: bool) -> None:
    """The head computes this rank's logits, and the model's loss is made of them."""
    layer, comm = model.get_submodule(name), cutter.comm
    vocabulary, cut = layer.out_features, cutter.cut(name, 0, layer.out_features)
    cutter.replace(layer, cut, "weight", "bias")
    layer.out_features = len(layer.weight)
    enter(layer, comm, name, regions.gather_in if sequence else regions.copy_in)
    own = partial(cross_entropy, start=cut.by_rank[comm.rank][0].start, vocabulary=vocabulary, comm=comm)
    if hasattr(model, "loss_function"):  # of Hugging Face
        model.loss_function = partial(causal_loss, own)
    else:
        model.loss = own

    def whole_logits(model, args, output):
        """What is returned without a loss."""
        if isinstance(output, Tensor):
            return WholeLogits.apply(output, cut, comm) if output.dim() else output
        if output.loss is None:
            output.logits = WholeLogits.apply(output.logits, cut, comm)
        return output

    model.register_forward_hook(whole_logits)


class WholeLogits(torch.autograd.Function):
    """All ranks' columns (..., V) from each rank's (..., V/t). Every rank computes the same from them, so its gradient of
    its own columns is whole."""

    @staticmethod
    def forward(ctx, logits, cut, comm):
        ctx.cut, ctx.comm = cut, comm
        columns = logits.detach().movedim(-1, 0).contiguous()
        return gathered(columns, cut, comm, "logits").movedim(0, -1).contiguous()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.cut.take(gradient.movedim(-1, 0), ctx.comm.rank).movedim(0, -1), None, None


def causal_loss(own: Callable, logits: Tensor, labels: Tensor, vocab_size: int | None = None,
                num_items_in_batch: Tensor | int | None = None, ignore_index: int = -100,
                shift_labels: Tensor | None = None, **_) -> Tensor:
    """In place of a Hugging Face model's loss: the token after each is its target, and the last one has none. What it does
    not know, such as label_smoothing, is ignored, as transformers does."""
    if shift_labels is None:
        shift_labels = nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    if num_items_in_batch is None:
        return own(logits, shift_labels, ignore_index=ignore_index)
    return own(logits, shift_labels, ignore_index=ignore_index, reduction="sum") / num_items_in_batch


def same_samples(model: nn.Module, comm: Comm) -> None:
    """At its first call the model compares what the ranks were given, which must be the same on all of them, and, where
    it has dropout, their random states."""

    def before(model, args, kwargs):
        handle.remove()
        name = "rank {} of the tensor-parallel group".format
        check_same_samples((*args, *kwargs.values()), comm, name)
        check_same_masks([model], comm, name)

    handle = model.register_forward_pre_hook(before, with_kwargs=True)
