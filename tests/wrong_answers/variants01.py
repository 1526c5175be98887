"""Wrong answers of chapter 01, the same mistakes by another hand."""

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

from wrong_answers import wrong

# 1.1 ----------------------------------------------------------------------------------------------------------------

@wrong("1.1", "head although it is tied")
def by_the_names_of_a_state_dict(layers, width, vocab, block_size, tied):
    numel = {"tokens.weight": vocab * width, "positions.weight": block_size * width}
    for i in range(layers):
        for norm in ("norm1", "norm2"):
            numel[f"{i}.{norm}.weight"] = numel[f"{i}.{norm}.bias"] = width
        for name, inputs, outputs in (("qkv", 1, 3), ("out", 1, 1), ("up", 1, 4), ("down", 4, 1)):
            numel[f"{i}.{name}.weight"] = inputs * outputs * width * width
            numel[f"{i}.{name}.bias"] = outputs * width
    numel["norm.weight"] = numel["norm.bias"] = width
    numel["head.weight"] = numel["tokens.weight"] if tied else vocab * width
    return sum(numel.values())


@wrong("1.1", "head where it is not tied")
def same_shape_same_tensor(layers, width, vocab, block_size, tied):
    tables, head = [(vocab, width), (block_size, width)], (vocab, width)
    if head not in tables:
        tables.append(head)
    matrices = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    block = sum(inputs * outputs + outputs for inputs, outputs in matrices) + 2 * 2 * width
    return sum(map(math.prod, tables)) + layers * block + 2 * width


@wrong("1.1", "left out the biases")
def weights_of_the_linear_layers(layers, width, vocab, block_size, tied):
    total = vocab * width + block_size * width
    if not tied:
        total += vocab * width
    for _ in range(layers):
        for rows in (3 * width, width, 4 * width):
            total += rows * width
        total += width * (4 * width)
    for _ in range(2 * layers + 1):
        total += width + width
    return total


@wrong("1.1", "last LayerNorm, which comes")
def norms_in_the_blocks(layers, width, vocab, block_size, tied):
    def linear(inputs, outputs, bias=True):
        return outputs * (inputs + bias)

    def norm():
        return linear(1, width)

    attention = norm() + linear(width, 3 * width) + linear(width, width)
    mlp = norm() + linear(width, 4 * width) + linear(4 * width, width)
    head = 0 if tied else linear(width, vocab, bias=False)
    return (vocab + block_size) * width + layers * (attention + mlp) + head


@wrong("1.1", "one vector")
def a_gain_for_each_norm(layers, width, vocab, block_size, tied):
    vectors = {"norm": 1, "qkv bias": 3, "norm 2": 1, "out bias": 1, "up bias": 4, "down bias": 1}
    matrices = {"qkv": 3, "out": 1, "up": 4, "down": 4}
    total = (vocab + block_size) * width
    total += layers * (sum(matrices.values()) * width + sum(vectors.values())) * width
    total += width  # the last norm
    return total if tied else total + width * vocab


@wrong("1.1", "table of positions: block_size")
def positions_need_no_numbers(layers, width, vocab, block_size, tied):
    sizes = [vocab * width] + [vocab * width] * (not tied)
    for _ in range(layers):
        sizes.extend([2 * width, (width + 1) * 3 * width, (width + 1) * width])
        sizes.extend([2 * width, (width + 1) * 4 * width, (4 * width + 1) * width])
    sizes.append(2 * width)
    return sum(sizes)


@wrong("1.1", "left out the LayerNorms")
def linear_layers_and_tables(layers, width, vocab, block_size, tied):
    total = 0
    for inputs, outputs in [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * layers:
        total += inputs * outputs + outputs
    for rows in (vocab, block_size, 0 if tied else vocab):
        total += rows * width
    return total


# 1.3 ----------------------------------------------------------------------------------------------------------------

def _fits(card_bytes, needs):
    """The largest number of which needs(number) is at most card_bytes, bit by bit from above."""
    found = 0
    for bit in reversed(range(80)):
        if needs(found | 1 << bit) <= card_bytes:
            found |= 1 << bit
    return found


@wrong("1.3", "all 16 bytes among the ranks")
def shares_times_ranks(card_bytes, stage, ranks):
    share = card_bytes // (2 + 2 + 4 + 4 + 4)
    return sum(share for _ in range(ranks))


@wrong("1.3", "one rank's card for the whole")
def bisected_for_one_rank(card_bytes, stage, ranks):
    return bisect_right(range(1, card_bytes + 1), card_bytes, key=lambda params: (2 + 2 + 12) * params)


@wrong("1.3", "one stage too far")
def divided_from_stage_zero_on(card_bytes, stage, ranks):
    def needs(params):
        share = -(-params // ranks)
        return sum(nbytes * (share if stage >= first else params) for first, nbytes in enumerate((12, 2, 2)))
    return _fits(card_bytes, needs)


@wrong("1.3", "holds ceil(P / N) parameters")
def search_with_a_fraction(card_bytes, stage, ranks):
    def needs(params):
        held = [Fraction(params, ranks) if stage > kind else params for kind in range(3)]
        return 12 * held[0] + 2 * held[1] + 2 * held[2]
    return _fits(card_bytes, needs)


@wrong("1.3", "only whole rows")
def row_after_row(card_bytes, stage, ranks):
    for_all = sum((12, 2, 2)[stage:])
    a_row = ranks * for_all + (16 - for_all)
    rows = _fits(card_bytes, lambda number: number * a_row)
    return rows * ranks


@wrong("1.3", "stopped one short")
def never_quite_full(card_bytes, stage, ranks):
    for_all = sum((12, 2, 2)[stage:])
    for_own = 16 - for_all
    rows, left = divmod(max(card_bytes - 1, 0), ranks * for_all + for_own)
    left -= for_own
    more = left // for_all if for_all and left > 0 else 0
    return rows * ranks + more


# 1.4 ----------------------------------------------------------------------------------------------------------------

def _one_pass(params, ranks):
    size = -(-params // ranks)
    return sum(2 * size for _ in range(ranks - 1))


@wrong("1.4", "all-reduce once")
def a_pass_for_each_collective(params, stage, ranks, accumulation):
    if stage == 0:
        calls = ["all_reduce"]
    elif stage < 3:
        calls = ["reduce_scatter"] * (accumulation if stage == 2 else 1) + ["all_gather"]
    else:
        calls = ["all_gather", "all_gather", "reduce_scatter"] * accumulation
    return len(calls) * _one_pass(params, ranks)


@wrong("1.4", "parameters once at stage 3")
def kept_until_the_backward(params, stage, ranks, accumulation):
    gathers = reductions = 1
    if stage >= 2:
        reductions = accumulation
    if stage == 3:
        gathers = accumulation
    return (gathers + reductions) * _one_pass(params, ranks)


@wrong("1.4", "left out accumulation at stages 2 and 3")
def the_papers_table(params, stage, ranks, accumulation):
    return _one_pass(params, ranks) * (2 + (stage == 3))


@wrong("1.4", "every stage by the accumulation")
def a_step_for_each_micro_batch(params, stage, ranks, accumulation):
    sent, todo = 0, ["reduce", "gather"] + ["gather"] * (stage == 3)
    while accumulation > 0:
        for _ in todo:
            sent += _one_pass(params, ranks)
        accumulation -= 1
    return sent


@wrong("1.4", "counted elements")
def places_in_the_row(params, stage, ranks, accumulation):
    padded = params + -params % ranks
    a_pass = padded - padded // ranks
    micro_batches = {"gathers": [1, 1, 1, 2 * accumulation], "reductions": [1, 1, accumulation, accumulation]}
    return a_pass * sum(passes[stage] for passes in micro_batches.values())


@wrong("1.4", "let a rank send everything")
def a_share_for_every_rank(params, stage, ranks, accumulation):
    nbytes = 0
    passes = 2 if stage < 2 else 3 * accumulation if stage > 2 else 1 + accumulation
    for _ in range(ranks):
        nbytes += 2 * -(-params // ranks)
    return passes * nbytes


@wrong("1.4", "after every micro-batch")
def stage_2_gathers_with_each_reduction(params, stage, ranks, accumulation):
    passes = {"reduction": 1, "gather": 1}
    if stage == 3:
        passes["gather"] += 1
    times = accumulation if stage in (2, 3) else 1
    return times * sum(passes.values()) * _one_pass(params, ranks)


@wrong("1.4", "round params / ranks up")
def floor_division(params, stage, ranks, accumulation):
    share, _ = divmod(params, ranks)
    reductions = accumulation if stage >= 2 else 1
    gathers = 2 * accumulation if stage == 3 else 1
    return (reductions + gathers) * (ranks - 1) * share * 2


# 1.5 ----------------------------------------------------------------------------------------------------------------

class _Rank:
    """A right answer that keeps what is held kind by kind, each verb a method to override."""

    def __init__(self, units, stage, ranks):
        self.units, self.stage, self.ranks, self.log = units, stage, ranks, []
        self.buffers, self.gradients, self.live = {}, {}, {}

    def share(self, i):
        return (self.units[i][0] + self.ranks - 1) // self.ranks

    def states(self):
        whole = (14, 2, 2, 0)[self.stage]
        return sum(whole * unit[0] + (14 - whole) * self.share(i) for i, unit in enumerate(self.units))

    def unshard(self, i):
        self.buffers[i] = 2 * self.units[i][0]

    def forward(self, i):
        self.live[i] = self.units[i][1]

    def reshard(self, i):
        del self.buffers[i]

    def backward(self, i):
        self.gradients[i] = 2 * self.units[i][0]

    def reduce(self, i):
        self.gradients[i] = 2 * self.share(i)

    def free(self, i):
        del self.live[i]

    def note(self, event):
        kinds = (self.buffers, self.gradients, self.live)
        self.log.append((event, self.base + sum(sum(kind.values()) for kind in kinds)))

    def play(self):
        there = ["unshard", "forward", "reshard"] if self.stage == 3 else ["forward"]
        back = {2: ["backward", "reduce", "free"], 3: ["unshard", "backward", "reduce", "reshard", "free"]}
        todo = [(verb, i) for i in range(len(self.units)) for verb in there]
        todo += [(verb, i) for i in range(len(self.units))[::-1] for verb in back.get(self.stage, ["backward", "free"])]
        self.base = self.states()
        self.note("start")
        for verb, i in todo:
            getattr(self, verb)(i)
            self.note(f"{verb} {i}")
        self.gradients.clear()
        self.note("zero_grad")
        return self.log


@wrong("1.5", "is never freed")
def buffers_stay_for_the_next_time(units, stage, ranks):
    class Rank(_Rank):
        def reshard(self, i):
            pass
    return Rank(units, stage, ranks).play()


@wrong("1.5", "beside the share")
def gradient_freed_with_the_activations(units, stage, ranks):
    class Rank(_Rank):
        def reduce(self, i):
            self.gradients[f"share of {i}"] = 2 * self.share(i)

        def free(self, i):
            super().free(i)
            if self.stage >= 2:
                del self.gradients[i]
    return Rank(units, stage, ranks).play()


@wrong("1.5", "from the last to the first")
def one_loop_like_the_other(units, stage, ranks):
    changes, base, gradients = [], 0, 0
    for i, (params, live) in enumerate(units):
        share = -(-params // ranks)
        base += 2 * (share if stage == 3 else params) + 12 * (share if stage else params)
        around = [[("unshard", 2 * params)], [("reshard", -2 * params)]] if stage == 3 else [[], []]
        reduced = [("reduce", 2 * share - 2 * params)] if stage > 1 else []
        gradients += 2 * (share if stage > 1 else params)
        there = [*around[0], ("forward", live), *around[1]]
        back = [*around[0], ("backward", 2 * params), *reduced, *around[1], ("free", -live)]
        changes.append([[(f"{verb} {i}", change) for verb, change in each] for each in (there, back)])
    events = [event for each in (0, 1) for unit in changes for event in unit[each]]
    names, numbers = zip(("start", base), *events, ("zero_grad", -gradients), strict=True)
    return list(zip(names, accumulate(numbers), strict=True))


@wrong("1.5", "nothing of the gradient is left")
def reduced_and_gone(units, stage, ranks):
    class Rank(_Rank):
        def reduce(self, i):
            self.gradients.pop(i)
    return Rank(units, stage, ranks).play()


@wrong("1.5", "The backward of stage 3 needs whole")
def there_since_the_forward(units, stage, ranks):
    class Rank(_Rank):
        def unshard(self, i):
            if i in self.live:
                self.buffers[i] = 0
            else:
                super().unshard(i)
    return Rank(units, stage, ranks).play()


@wrong("1.5", "cut by itself")
def units_end_to_end(units, stage, ranks):
    class Rank(_Rank):
        def share(self, i):
            before = sum(params for params, _ in self.units[:i])
            begin, end = -(-before // self.ranks), -(-(before + self.units[i][0]) // self.ranks)
            return end - begin
    return Rank(units, stage, ranks).play()
