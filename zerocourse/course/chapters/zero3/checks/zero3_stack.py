"""The check of 7.7: a sharded stack of blocks, trained on data that differ by rank, its bytes watched."""

import itertools

import torch
import torch.distributed as dist
from torch import nn

from .....measure.ledger import Ledger
from ....checks.exercise import exercise
from ....checks.harness import When
from ....checks.trace import Trial
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
    """Train a sharded stack of 8 blocks on this rank, with data of its own; what it holds, and when.

    case: on {world} ranks
    shapes: the shards of rank {rank} have the shapes {got}, and {want} are right: one shard a block, flat,
        ceil(n / {world}) elements.
    trainable: an optimizer cannot train the shards of rank {rank}.
    memory: a shard of rank {rank} has no memory.
    start: before the first step rank {rank} holds {_start} bytes, and {_share} are right, its shards.
    forward left: micro-batch {_batch}: the forward of rank {rank} left {got} bytes behind (its largest block has
        {_block} bytes and the model {_model}).
    forward peak: micro-batch {_batch}: the forward of rank {rank} took {got} bytes at its peak (its largest block has
        {_block} bytes and the model {_model}).
    no gradient: after the backward {got} shards of rank {rank} have no `.grad`.
    backward left: micro-batch {_batch}: after the backward rank {rank} holds {got} bytes (its largest block has
        {_block} bytes and the model {_model}).
    backward peak: micro-batch {_batch}: the backward of rank {rank} took {got} bytes at its peak (its largest block has
        {_block} bytes and the model {_model}).
    all_reduce: rank {rank} called `all_reduce` {got} times in a forward and a backward of 8 blocks.
    all_gather: rank {rank} gathered {got} times in a forward and a backward of 8 blocks: twice a block is right.
    reduce_scatter: rank {rank} reduce-scattered {got} times in a forward and a backward of 8 blocks: once a block is
        right, when all its gradients are there.
    first loss: the very first loss of rank {rank} is {got}, and the unsharded model has {want}.
    shards: after 2 steps, each rank with data of its own, the shards of rank {rank}, end to end, are not those of the
        unsharded model: they have
    step left: after a step and `zero_grad()` rank {rank} holds {_between} bytes, and {_share2} are right: its shards
        and SGD's momentum.
    evaluation left: an evaluation under `torch.no_grad()` leaves {got} bytes behind on rank {rank}.
    evaluation peak: an evaluation under `torch.no_grad()` takes {got} bytes at its peak on rank {rank}.
    """
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
    "7.7", "Stage 3 from nothing", minutes=75, difficulty=3, answer="shard_stack", timeout=15,
    replaces=("zerocourse:shard", "zerocourse.comm.group:Comm.all_gather", "zerocourse.comm.group:Comm.reduce_scatter",
              "zerocourse.zero.buffer:FlatBuffer.build", "zerocourse.zero.stage3:*"),
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
    "rows" for them that are made in advance.

    one more: A shard is one element too long where a block divides evenly, as with a padding of ranks - n % ranks: no
        padding is needed there. Pad by -n % ranks.
    rounded down: You rounded down, and the last elements of a block belong to nobody: round up and pad.
    not cut: You cut nothing: every rank has whole rows.
    not trainable: Each must be a leaf that requires a gradient, such as `nn.Parameter(row[mine].clone())`.
    view of a freed row: It is a view of a row that was freed. The shard is the only copy that stays: clone it.
    view of a whole row: Are the shards views of the whole rows? A view keeps all of the memory it looks at: clone it.
    never freed: Where is the memory of the parameters, whole? Free the rows, and let the parameters be views of them.
    gradient rows kept: Did you make the rows for the gradients in advance? Then a rank holds a whole gradient all the
        time: make a row when a block's gradients are reduced, and let it go.
    no memory: Its hooks must gather its own row before. (A function that is defined in a loop sees the last value of
        the loop's variables.)
    kept in the forward: The blocks' whole parameters are still there. Free the storage after each block. If you give
        the parameters another tensor instead, the old memory lives on, because autograd saved views of it.
    gathered too soon: Gather a block just before it computes, and free it before the next.
    no gradient: The optimizer has nothing to step: set `.grad` of the very shards that you return.
    gradients kept: Whole parameters or whole gradients are still there. When a block's gradients are reduced, set each
        parameter's `.grad` to None, and free the storage again.
    reduced at the end: Reduce and free a block as soon as its own backward is over, not at the end.
    all-reduce: That brings the whole sum to every rank, and sends twice as much; a rank needs its own slice alone,
        which is a reduce-scatter.
    gathered again: Gather before the forward and before the backward, and nowhere else.
    reduced again: Wait for the last gradient of the block, and reduce then.
    views: Do the parameters view the gathered row in the right order?
    summed: You summed the gradients of the ranks and never divided by their number: that is a learning rate {world}
        times as large.
    divided twice: You divided by the number of ranks twice.
    sum divided: You added to the shard's gradient and divided then, so what earlier backwards left was divided again:
        divide what is new alone.
    own gradient: Each shard was moved by its own rank's gradient alone: the sum over the ranks is missing.
    gradient of rank 0: Every rank got the gradients of rank 0.
    last one counts: Of two backwards before a step only the last one counted: add to the shard's `.grad` when there is
        one.
    nothing moved: Nothing moved.
    kept between steps: Some row of parameters or of gradients is still there, as a whole.
    kept in evaluation: Nothing may stay gathered when no backward follows.
    stuck: Does a collective sit behind an `if` that is not true on every rank?
    right: trained on 2 and 3 ranks like the unsharded model: a share of it between steps, few blocks at the peak.
    """
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
