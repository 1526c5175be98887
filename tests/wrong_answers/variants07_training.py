"""Wrong answers to exercise 7.7, the same mistakes by another hand."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from wrong_answers import wrong

from zerocourse.comm import Comm
from zerocourse.layout.rankmap import Layout
from zerocourse.zero import stage3
from zerocourse.zero.buffer import FlatBuffer

# 7.7 ----------------------------------------------------------------------------------------------------------------

def _all_gather(row, mine):
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(row, mine)


def _reduce_scatter(mine, row):
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    scatter(mine, row)


class _Hooks:
    """Calls three functions at the right moments."""

    def __init__(self, block, fetch, give_back, finish):
        self.fetch, self.give_back, self.finish = fetch, give_back, finish
        self.number, self.came = len(list(block.parameters())), 0
        block.register_forward_pre_hook(self.before)
        block.register_forward_hook(self.after)
        for param in block.parameters():
            param.register_post_accumulate_grad_hook(self.on_gradient)

    def before(self, block, inputs):
        self.fetch()

    def after(self, block, inputs, output):
        self.give_back()
        if output.requires_grad:
            output.register_hook(self.again)

    def again(self, gradient):
        self.fetch()

    def on_gradient(self, param):
        self.came = (self.came + 1) % self.number
        if self.came == 0:
            self.finish()


class _Unit:
    """A block sharded in the right way; a wrong answer has another method or other hooks."""

    hooks = _Hooks

    def __init__(self, block):
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.params = list(block.parameters())
        self.row, mine = self.lay(parameters_to_vector(self.params).detach())
        self.shard = nn.Parameter(mine)
        vector_to_parameters(self.row, self.params)
        self.give_back()
        self.hooks(block, self.fetch, self.give_back, self.finish)

    def lay(self, vector):
        """The row, and what this rank keeps of it."""
        row = F.pad(vector, (0, -len(vector) % self.ranks))
        return row, row.chunk(self.ranks)[self.rank].clone()

    def fetch(self):
        self.row.untyped_storage().resize_(self.row.nbytes)
        _all_gather(self.row, self.shard.detach())

    def give_back(self):
        self.row.untyped_storage().resize_(0)

    def finish(self):
        gradients = torch.cat([param.grad.flatten() for param in self.params])
        gradients = F.pad(gradients, (0, len(self.row) - len(gradients)))
        self.clear()
        mine = self.mean(gradients)
        self.shard.grad = mine if self.shard.grad is None else self.shard.grad + mine
        self.give_back()

    def clear(self):
        for param in self.params:
            param.grad = None

    def mean(self, gradients):
        mine = torch.empty(len(self.shard))
        _reduce_scatter(mine, gradients.div_(self.ranks))
        return mine


@wrong("7.7", "twice a block is right")
def again_for_the_weights(model):
    class Unit(_Unit):
        def __init__(self, block):
            super().__init__(block)
            self.params[-1].register_hook(self.weights_come)

        def weights_come(self, gradient):
            self.fetch()
    return [Unit(block).shard for block in model]


@wrong("7.7", "belong to nobody")
def pieces_of_a_split(model):
    class Unit(_Unit):
        def lay(self, vector):
            return vector, vector.split(len(vector) // self.ranks)[self.rank].clone()

        def fetch(self):
            self.row.untyped_storage().resize_(self.row.nbytes)
            _all_gather(self.row[:len(self.shard) * self.ranks], self.shard.detach())

        def mean(self, gradients):
            return super().mean(gradients[:len(self.shard) * self.ranks])
    return [Unit(block).shard for block in model]


@wrong("7.7", "every rank has whole rows")
def data_parallel_in_rows(model):
    shards = []
    for block in model:
        params = list(block.parameters())
        shard = nn.Parameter(parameters_to_vector(params).detach())
        vector_to_parameters(shard.detach(), params)

        def average(param, params=params, shard=shard):
            if any(each.grad is None for each in params):
                return
            gradients = torch.cat([each.grad.flatten() for each in params]) / dist.get_world_size()
            dist.all_reduce(gradients)
            shard.grad = gradients if shard.grad is None else shard.grad + gradients
            for each in params:
                each.grad = None

        for param in params:
            param.register_post_accumulate_grad_hook(average)
        shards.append(shard)
    return shards


@wrong("7.7", "A view keeps all of the memory")
def slice_of_a_clone(model):
    class Unit(_Unit):
        def lay(self, vector):
            row, _ = super().lay(vector)
            return row, row.clone().view(self.ranks, -1)[self.rank]
    return [Unit(block).shard for block in model]


@wrong("7.7", "an evaluation under")
def returns_without_a_graph(model):
    class Hooks(_Hooks):
        def after(self, block, inputs, output):
            if output.grad_fn is None:
                return
            super().after(block, inputs, output)

    class Unit(_Unit):
        hooks = Hooks
    return [Unit(block).shard for block in model]


@wrong("7.7", "set each parameter's `.grad` to")
def set_to_zeros(model):
    class Unit(_Unit):
        def clear(self):
            for param in self.params:
                param.grad.zero_()
    return [Unit(block).shard for block in model]


@wrong("7.7", "gather a block just before it computes")
def whoever_is_away_calls_all(model):
    units = []

    class Unit(_Unit):
        def fetch(self):
            if self.row.untyped_storage().nbytes() == 0:
                for unit in units:
                    _Unit.fetch(unit)

    units.extend(map(Unit, model))
    return [unit.shard for unit in units]


@wrong("7.7", "as soon as its own backward is over, not at the end")
def callbacks_of_the_engine(model):
    class Unit(_Unit):
        def finish(self):
            torch.autograd.Variable._execution_engine.queue_callback(super().finish)
    return [Unit(block).shard for block in model]


@wrong("7.7", "sees the last value of the loop")
def lambdas_in_a_list(model):
    class Unit(_Unit):
        def hooks(self, *_):
            pass

    units = [Unit(block) for block in model]
    calls = [(lambda: unit.fetch(), lambda: unit.give_back(), lambda: unit.finish()) for unit in units]
    for block, three in zip(model, calls):
        _Hooks(block, *three)
    return [unit.shard for unit in units]


@wrong("7.7", "the same collectives")
def the_first_has_its_slice_already(model):
    class Unit(_Unit):
        def mean(self, gradients):
            if self.rank == 0:
                return gradients[:len(self.shard)] / self.ranks
            return super().mean(gradients)
    return [Unit(block).shard for block in model]


@wrong("7.7", "has no `.grad`")
def other_parameters_of_the_same_memory(model):
    return [nn.Parameter(_Unit(block).shard.detach()) for block in model]


@wrong("7.7", "write it yourself")
def built_of_flats(model):
    comm = Comm()

    def one(block):
        params = dict(block.named_parameters())
        layout = Layout.build({name: param.shape for name, param in params.items()}, comm.world_size)
        flat = FlatBuffer("block", params, layout, comm.rank, True, True, torch.float32)
        flat.begin(torch.device("cpu"))
        flat.fill(lambda row: None)
        shard = nn.Parameter(flat.shard)

        def fetch():
            stage3.unshard(flat, comm).wait()
            flat.show()

        def give_back():
            stage3.reshard(flat)
            flat.hide()

        def finish():
            for name, param in params.items():
                flat.collect(name, param)
            flat.complete_bucket()
            flat.grad_shard = shard.grad
            comm.reduce_scatter(flat.grad, layout, flat.name, done=flat.accumulate).wait()
            flat.drop_bucket()
            shard.grad, flat.grad_shard = flat.grad_shard, None
            give_back()

        give_back()
        _Hooks(block, fetch, give_back, finish)
        return shard

    return [one(block) for block in model]
