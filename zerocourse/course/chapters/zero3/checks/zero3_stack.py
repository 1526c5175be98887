"""The check of 7.7: a sharded stack of blocks, trained on data that differ by rank, its bytes watched."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

from .....measure.ledger import Ledger
from ....checks import Trial, When, exercise
from ....trials.watched_training import TrainingLimits, phases
from .zero3_hooks import attach
from .zero3_watch import guard_reads, settled, watched_collectives

WIDTHS = (61, 67, 59, 64, 71, 60, 66, 63)  # of the blocks' middles: no two alike, and few divide evenly
WIDTH, LR, MOMENTUM = 23, 0.05, 0.5


class ResidualBlock(nn.Module):
    def __init__(self, middle):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, middle), nn.Linear(middle, WIDTH)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


def make_stack():
    torch.manual_seed(3)
    return nn.Sequential(*[ResidualBlock(middle) for middle in WIDTHS])


def batches(rank):
    seed = torch.Generator().manual_seed(50 + rank)
    return [torch.randn(2, WIDTH, generator=seed) for _ in range(3)]  # one for the first step, two for the second


def elements(block):
    return sum(param.numel() for param in block.parameters())


def loss_of(model, x):
    return (model(x) - x.roll(1, dims=1)).square().mean()


def stack_on_a_rank(shard_stack):
    """Train a sharded stack of 8 blocks on this rank, with data of its own; what it holds, and when."""
    rank, world = dist.get_rank(), dist.get_world_size()
    with Ledger() as ledger, watched_collectives() as calls:
        model, data = make_stack(), batches(rank)
        ledger.track(model, data)
        sizes = [-(-elements(block) // world) for block in model]
        shards, others = shard_stack(model), sum(x.nbytes for x in data)
        share, block = 4 * sum(sizes), 4 * world * max(sizes)
        seen = {"shapes": [tuple(shard.shape) if torch.is_tensor(shard) else None for shard in shards],
                "_share": share, "_share2": 2 * share, "_block": block, "_model": world * share}
        if seen["shapes"] != [(size,) for size in sizes]:
            return seen
        seen["trainable"] = all(shard.is_leaf and shard.requires_grad for shard in shards)
        seen["memory"] = all(shard.untyped_storage().nbytes() >= shard.nbytes for shard in shards)
        if not (seen["trainable"] and seen["memory"]):
            return seen
        guard_reads(model)
        seen["_start"] = settled(ledger, others + share + block // 2) - others
        seen["start"] = 1 if seen["_start"] <= share + block // 2 else max(2, round(seen["_start"] / share))
        losses, before, stopped = [], 0, False
        limits = TrainingLimits({
            "forward left": 4 * block, "forward peak": 4 * block, "no gradient": 0, "backward left": 3 * share + 2 * block,
            "backward peak": 6 * block + share, "all_reduce": len(model) - 1, "all_gather": 2 * len(model),
            "reduce_scatter": len(model)}, losses)
        optimizer, over = torch.optim.SGD(shards, lr=LR, momentum=MOMENTUM), limits.over
        steps = (phases(model, optimizer, micros, losses, loss_of) for micros in (data[:1], data[1:]))
        for ended, begins in itertools.chain.from_iterable(steps):
            if ended == "forward":
                over("forward peak", ledger.peak - before)
                stopped = over("forward left", settled(ledger, before + 4 * block) - before)
            elif ended == "backward":
                over("backward peak", ledger.peak - before)
                over("backward left", settled(ledger, others + limits["backward left"]) - others)
                for verb in ("all_reduce", "all_gather", "reduce_scatter"):
                    over(verb, calls[verb])
                stopped = over("no gradient", sum(shard.grad is None for shard in shards))
            if stopped:
                break
            if begins == "forward":
                calls.clear()
                before = settled(ledger, others + 3 * share + block // 2)  # shards, gradients, momentum
            ledger.reset_peak()
        seen |= limits.seen | {"_batch": limits.first, "first loss": torch.tensor(losses[0])}
        if stopped:
            return seen
        seen["shards"] = None  # until nothing is measured any more
        seen["_between"] = settled(ledger, others + 2 * share + block // 2) - others
        seen["step left"] = seen["_between"] > 2 * share + block // 2
        with torch.no_grad():
            before = settled(ledger, others + 3 * share + block // 2)
            ledger.reset_peak()
            loss_of(model, data[0])
            seen["evaluation left"] = max(block // 2, settled(ledger, before + block // 2) - before)
            seen["evaluation peak"] = max(4 * block, ledger.peak - before)
        seen["shards"] = torch.cat([shard.detach() for shard in shards])
    return seen


def only_shards(length):
    """An answer that ends with the shards, each with so many elements of the block's."""
    return lambda model: [nn.Parameter(torch.zeros(length(elements(block), dist.get_world_size()))) for block in model]


def scattered(row, times=1.0):
    mine = torch.empty(len(row) // dist.get_world_size())
    (getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor)(mine, row * times)
    return mine


def own_part(row):
    return row.chunk(dist.get_world_size())[dist.get_rank()]


def all_reduced(row):
    dist.all_reduce(row)
    return own_part(row) / dist.get_world_size()


def of_rank_0(row):
    dist.broadcast(row, 0)
    return own_part(row).clone()


def scattered_twice(row):
    scattered(row)
    return scattered(row, 1 / dist.get_world_size())


def added(shard, mine):
    shard.grad = mine if shard.grad is None else shard.grad + mine


def added_and_divided(shard, mine):
    added(shard, mine)
    shard.grad = shard.grad / dist.get_world_size()


def cleared(param):
    param.grad = None


def nothing(*_):
    pass


def if_freed(number, rows):
    """All rows at once, when this one is not there."""
    return range(len(rows)) if not rows[number].untyped_storage().nbytes() else ()


@exercise(
    "7.7", "Stage 3 from nothing", minutes=75, difficulty=3, timeout=15,
    replaces=("zerocourse:shard", "zerocourse.comm.group:Comm.all_gather", "zerocourse.comm.group:Comm.reduce_scatter",
              "zerocourse.zero.buffers.buffer:FlatBuffer.build", "zerocourse.zero.stage3:*"),
    trials=[Trial(observe=stack_on_a_rank, worlds=(2, 3), close=1e-5)],
    mistakes={
        "one more": only_shards(lambda n, ranks: n // ranks + 1),
        "rounded down": only_shards(lambda n, ranks: n // ranks),
        "not cut": (only_shards(lambda n, ranks: n), only_shards(lambda n, ranks: -(-n // ranks) * ranks)),
        "not trainable": (When("trainable"), {"parameter": lambda shard: shard}),
        "view of a freed row": {"cut": own_part},
        "view of a whole row": {"cut": lambda row: own_part(row.clone())},
        "never freed": {"free": nothing},
        "gradient rows kept": {"keep": "rows"},
        "no memory": {"wanted": lambda number, rows: [len(rows) - 1]},
        "kept in the forward": ({"hooks": {"after": ()}}, When("forward left")),
        "gathered too soon": ({"wanted": if_freed}, When("forward peak")),
        "no gradient": ({"add": nothing}, When("no gradient")),
        "gradients kept": ({"clear": lambda param: param.grad.zero_()}, When("backward left")),
        "reduced at the end": ({"late": True}, When("backward peak")),
        "all-reduce": (When("all_reduce"), {"reduce": all_reduced}),
        "gathered again": (When("all_gather"), {"wanted": lambda number, rows: [number, number]}),
        "reduced again": (When("reduce_scatter"), {"reduce": scattered_twice}),
        "views": (When("first loss"), {"order": lambda params: params[::-1]}),
        "summed": {"reduce": scattered},
        "divided twice": {"reduce": lambda row: scattered(row, dist.get_world_size() ** -2)},
        "sum divided": {"reduce": scattered, "add": added_and_divided},
        "own gradient": ({"reduce": lambda row: own_part(row).clone()},
                         {"reduce": lambda row: own_part(row) / dist.get_world_size()}),
        "gradient of rank 0": {"reduce": of_rank_0},
        "last one counts": {"add": lambda shard, mine: setattr(shard, "grad", mine)},
        "nothing moved": {"reduce": lambda row: scattered(row, 0.0)},
        "kept between steps": (When("step left"), {"keep": "last"}),
        "kept in evaluation": ({"hooks": {"frees": lambda block, output: output.requires_grad}},
                               When("evaluation left"), When("evaluation peak")),
        "stuck": {"gathers": lambda: dist.get_rank() == 0},
    })
def shard_stack(model, *, cut=lambda row: own_part(row).clone(), parameter=nn.Parameter, order=list,
                free=lambda row: row.untyped_storage().resize_(0), wanted=lambda number, rows: [number], hooks={},
                reduce=lambda row: scattered(row, 1 / dist.get_world_size()), add=added, clear=cleared, late=False,
                keep=None, gathers=lambda: True):
    """hooks: knobs of `attach`.   wanted: the rows that are gathered when a block's is needed.   order: of the views.
    late: are gradients reduced when the whole backward is over?   keep: the "last" gradients, or
    "rows" for them that are made in advance."""
    ranks, rows, shards, ended, kept = dist.get_world_size(), [], [], [], []
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    for number, block in enumerate(model):
        params = list(block.parameters())
        row = torch.cat([param.detach().flatten() for param in params])
        rows.append(nn.functional.pad(row, (0, -len(row) % ranks)))
        if keep == "rows":
            kept.append(torch.zeros_like(rows[number]))
        begin = 0
        for param in order(params):
            param.data = rows[number][begin:begin + param.numel()].view(param.shape)
            begin += param.numel()
        shards.append(parameter(cut(rows[number])))
        free(rows[number])

        def unshard(number=number):
            for each in wanted(number, rows):
                rows[each].untyped_storage().resize_(rows[each].nbytes)
                if gathers():
                    gather(rows[each], shards[each].detach())

        def finish(number=number, params=params):
            gradients = torch.cat([param.grad.flatten() for param in params])
            for param in params:
                clear(param)
            if keep == "last":
                kept[:] = [gradients]
            add(shards[number], reduce(nn.functional.pad(gradients, (0, -len(gradients) % ranks))))
            rows[number].untyped_storage().resize_(0)

        def backward_ended(number=number, finish=finish):
            ended.append(finish)
            while ended and (number == 0 or not late):
                ended.pop(0)()

        attach(block, unshard, lambda row=rows[number]: row.untyped_storage().resize_(0), backward_ended,
               **{"ending": ("reduce",), **hooks})
    return shards
