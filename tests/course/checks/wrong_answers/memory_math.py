"""Wrong answers of chapter 01."""

import math
from fractions import Fraction

from wrong_answers import wrong

# 1.1 ----------------------------------------------------------------------------------------------------------------

@wrong("1.1", "tied head")
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


# 1.2 ----------------------------------------------------------------------------------------------------------------

@wrong("1.2", "parameters at stage 2")
def stage_2_as_3(params, stage, ranks):
    share = math.ceil(params / ranks)
    return [16 * params, 4 * params + 12 * share, 16 * share, 16 * share][stage]


# 1.3 ----------------------------------------------------------------------------------------------------------------

@wrong("1.3", "shares not whole")
def search_with_a_fraction(card_bytes, stage, ranks):
    def needs(params):
        held = [Fraction(params, ranks) if stage > kind else params for kind in range(3)]
        return 12 * held[0] + 2 * held[1] + 2 * held[2]

    found = 0
    for bit in reversed(range(80)):
        if needs(found | 1 << bit) <= card_bytes:
            found |= 1 << bit
    return found


@wrong("1.3", "one too many")
def the_first_that_does_not_fit(card_bytes, stage, ranks):
    whole, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
    low, high = 0, card_bytes * ranks + 1
    while low < high:
        middle = (low + high) // 2
        if whole * middle + shared * -(-middle // ranks) <= card_bytes:
            low = middle + 1
        else:
            high = middle
    return low


# 1.4 ----------------------------------------------------------------------------------------------------------------

@wrong("1.4", "all-reduce once")
def a_pass_for_each_collective(params, stage, ranks, accumulation):
    if stage == 0:
        calls = ["all_reduce"]
    elif stage < 3:
        calls = ["reduce_scatter"] * (accumulation if stage == 2 else 1) + ["all_gather"]
    else:
        calls = ["all_gather", "all_gather", "reduce_scatter"] * accumulation
    return len(calls) * 2 * (ranks - 1) * -(-params // ranks)


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


@wrong("1.5", "never freed")
def buffers_stay_for_the_next_time(units, stage, ranks):
    class Rank(_Rank):
        def reshard(self, i):
            pass
    return Rank(units, stage, ranks).play()


@wrong("1.5", "difference")
def no_pairs(units, stage, ranks):
    return dict(_Rank(units, stage, ranks).play())


# 01.w1 --------------------------------------------------------------------------------------------------------------

@wrong("01.w1", "no master weights")
def two_averages_alone(stage, ranks):
    return [2 / (ranks if stage == 3 else 1), 2 / (ranks if stage > 1 else 1), 8 / (ranks if stage else 1)]


@wrong("01.w1", "all cut")
def sixteen_by_ranks(stage, ranks):
    by = 1 if stage == 0 else ranks
    return 2 / by, 2 / by, 12 / by


@wrong("01.w1", "other way round")
def parameters_first(stage, ranks):
    sizes = [2, 2, 12]
    for place in range(stage):
        sizes[place] /= ranks
    return tuple(sizes)


@wrong("01.w1", "sum")
def by_the_table(stage, ranks):
    return (16, 4 + 12 / ranks, 2 + 14 / ranks, 16 / ranks)[stage]


@wrong("01.w1", "raised")
def stages_from_a_dictionary(stage, ranks):
    return {1: (2, 2, 12 / ranks), 2: (2, 2 / ranks, 12 / ranks)}[stage]


# 01.w2 --------------------------------------------------------------------------------------------------------------

@wrong("01.w2", "highest")
def goes_on_to_the_end(states, activations, card):
    best = None
    for stage in range(4):
        if card >= states[stage] + activations:
            best = stage
    return best


@wrong("01.w2", "without activations")
def model_states_alone(states, activations, card):
    return min((stage for stage in range(4) if states[stage] <= card), default=None)


@wrong("01.w2", "3 where none fits")
def ends_with_three(states, activations, card):
    stage = 0
    while stage < 3 and states[stage] > card - activations:
        stage += 1
    return stage


@wrong("01.w2", "not quite full")
def room_must_be_left(states, activations, card):
    for stage in (0, 1, 2, 3):
        if card - states[stage] - activations > 0:
            return stage
    return None
