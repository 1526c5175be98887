"""Wrong answers of chapter 01."""

import math

from wrong_answers import wrong

# 1.1 ----------------------------------------------------------------------------------------------------------------

@wrong("1.1", "head although it is tied")
def head_always(layers, width, vocab, block_size, tied):
    block = 12 * width**2 + 13 * width
    return layers * block + 2 * vocab * width + block_size * width + 2 * width


@wrong("1.1", "head although it is tied")
def head_always_by_shapes(layers, width, vocab, block_size, tied):
    shapes = [(vocab, width), (block_size, width), (width, vocab), (width,), (width,)]
    for _ in range(layers):
        shapes += [(width,)] * 4 + [(width, 3 * width), (3 * width,), (width, width), (width,)]
        shapes += [(width, 4 * width), (4 * width,), (4 * width, width), (width,)]
    return sum(math.prod(shape) for shape in shapes)


@wrong("1.1", "head where it is not tied")
def head_never(layers, width, vocab, block_size, tied):
    return layers * (12 * width**2 + 13 * width) + (vocab + block_size + 2) * width


@wrong("1.1", "left out the biases")
def no_biases(layers, width, vocab, block_size, tied):
    block = 12 * width**2 + 4 * width
    return layers * block + (vocab * (1 if tied else 2) + block_size + 2) * width


@wrong("1.1", "last LayerNorm, which comes")
def no_last_norm(layers, width, vocab, block_size, tied):
    return layers * (12 * width**2 + 13 * width) + (vocab * (2 - tied) + block_size) * width


@wrong("1.1", "one vector")
def norms_of_one_vector(layers, width, vocab, block_size, tied):
    norms = (2 * layers + 1) * width
    return layers * (12 * width**2 + 9 * width) + norms + (vocab * (2 - tied) + block_size) * width


@wrong("1.1", "table of positions: block_size")
def no_positions(layers, width, vocab, block_size, tied):
    return layers * (12 * width**2 + 13 * width) + (vocab * (2 - tied) + 2) * width


@wrong("1.1", "left out the LayerNorms")
def no_norms(layers, width, vocab, block_size, tied):
    return layers * (12 * width * width + 9 * width) + (vocab * (2 - tied) + block_size) * width


# 1.2 ----------------------------------------------------------------------------------------------------------------

@wrong("1.2", "parameters at stage 2")
def stage_2_as_3(params, stage, ranks):
    share = math.ceil(params / ranks)
    return [16 * params, 4 * params + 12 * share, 16 * share, 16 * share][stage]


# 1.3 ----------------------------------------------------------------------------------------------------------------

def ceil_of_a_float(params, stage, ranks):
    share = math.ceil(params / ranks)
    return 16 * params if stage == 0 else sum(size * (share if stage >= first else params)
                                              for size, first in ((2, 3), (2, 2), (12, 1)))


@wrong("1.3", "all 16 bytes among the ranks")
def all_shared(card_bytes, stage, ranks):
    return card_bytes * ranks // 16


@wrong("1.3", "all 16 bytes among the ranks")
def all_shared_search(card_bytes, stage, ranks):
    low, high = 0, 10**30
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if 16 * middle <= ranks * card_bytes else (low, middle)
    return low


@wrong("1.3", "one rank's card for the whole")
def one_card(card_bytes, stage, ranks):
    return card_bytes // 16


@wrong("1.3", "one stage too far")
def stage_too_far(card_bytes, stage, ranks):
    whole, shared = [(4, 12), (2, 14), (0, 16), (0, 16)][stage]
    return int(card_bytes / (whole + shared / ranks))


@wrong("1.3", "holds ceil(P / N) parameters")
def share_not_rounded(card_bytes, stage, ranks):
    whole, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
    return card_bytes * ranks // (whole * ranks + shared)


@wrong("1.3", "only whole rows")
def whole_rows(card_bytes, stage, ranks):
    whole, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
    return card_bytes // (whole * ranks + shared) * ranks


@wrong("1.3", "stopped one short")
def below(card_bytes, stage, ranks):
    def needs(params):
        whole, shared = [(16, 0), (4, 12), (2, 14), (0, 16)][stage]
        return whole * params + shared * -(-params // ranks)
    low, high = 0, card_bytes * ranks + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if needs(middle) < card_bytes else (low, middle)
    return low


@wrong("1.3", "floats lose whole numbers")
def bisects_with_a_float(card_bytes, stage, ranks):
    fits, too_many = 0, card_bytes * ranks + 1
    while too_many - fits > 1:
        params = (fits + too_many) // 2
        if ceil_of_a_float(params, stage, ranks) <= card_bytes:
            fits = params
        else:
            too_many = params
    return fits


# 1.4 ----------------------------------------------------------------------------------------------------------------

@wrong("1.4", "all-reduce once")
def all_reduce_once(params, stage, ranks, accumulation):
    passes = [1, 2, accumulation + 1, 3 * accumulation][stage]
    return 2 * passes * (ranks - 1) * -(-params // ranks)


@wrong("1.4", "parameters once at stage 3")
def one_gather(params, stage, ranks, accumulation):
    passes = [2, 2, accumulation + 1, 2 * accumulation][stage]
    return 2 * passes * (ranks - 1) * -(-params // ranks)


@wrong("1.4", "left out accumulation at stages 2 and 3")
def no_accumulation(params, stage, ranks, accumulation):
    return (6 if stage == 3 else 4) * (ranks - 1) * -(-params // ranks)


@wrong("1.4", "every stage by the accumulation")
def always_accumulated(params, stage, ranks, accumulation):
    per_micro_batch = 2 * (3 if stage == 3 else 2) * (ranks - 1) * -(-params // ranks)
    return sum(per_micro_batch for _ in range(accumulation))


@wrong("1.4", "counted elements")
def elements(params, stage, ranks, accumulation):
    return [2, 2, accumulation + 1, 3 * accumulation][stage] * (ranks - 1) * math.ceil(params / ranks)


@wrong("1.4", "let a rank send everything")
def no_factor(params, stage, ranks, accumulation):
    return 2 * [2, 2, accumulation + 1, 3 * accumulation][stage] * params


@wrong("1.4", "after every micro-batch")
def gathers_each_time(params, stage, ranks, accumulation):
    share = -(-params // ranks)
    sent = 0
    for _ in range(accumulation if stage > 1 else 1):
        sent += 2 * share * (ranks - 1) * (3 if stage == 3 else 2)
    return sent


@wrong("1.4", "round params / ranks up")
def without_padding(params, stage, ranks, accumulation):
    return 2 * [2, 2, accumulation + 1, 3 * accumulation][stage] * params * (ranks - 1) // ranks


@wrong("1.4", "floats lose whole numbers")
def ceil_of_a_float_sent(params, stage, ranks, accumulation):
    once = 2 * (ranks - 1) * math.ceil(params / ranks)
    return once * (2, 2, accumulation + 1, 3 * accumulation)[stage]


# 1.5 ----------------------------------------------------------------------------------------------------------------

def _play(units, stage, ranks, keeps_whole=False, keeps_gradient=False, forwards=False, drops=False,
          cut_the_sum=False, one_gather=False):
    """A correct answer with switches that break it."""
    share = [-(-params // ranks) for params, _ in units]
    total = sum(params for params, _ in units)
    shares = -(-total // ranks) if cut_the_sum else sum(share)
    log = [("start", 2 * (shares if stage == 3 else total) + 12 * (shares if stage else total))]

    def add(event, change):
        log.append((event, log[-1][1] + change))

    for i, (params, activations) in enumerate(units):
        if stage == 3:
            add(f"unshard {i}", 2 * params)
        add(f"forward {i}", activations)
        if stage == 3:
            add(f"reshard {i}", 0 if keeps_whole else -2 * params)
    order = list(enumerate(units))
    for i, (params, activations) in order if forwards else order[::-1]:
        if stage == 3:
            add(f"unshard {i}", 0 if one_gather else 2 * params)
        add(f"backward {i}", 2 * params)
        if stage > 1:
            add(f"reduce {i}", (0 if drops else 2 * share[i]) - (0 if keeps_gradient else 2 * params))
        if stage == 3:
            add(f"reshard {i}", 0 if one_gather or keeps_whole else -2 * params)
        add(f"free {i}", -activations)
    return [*log, ("zero_grad", log[0][1])]


@wrong("1.5", "is never freed")
def never_resharded(units, stage, ranks):
    return _play(units, stage, ranks, keeps_whole=True)


@wrong("1.5", "beside the share")
def gradient_kept(units, stage, ranks):
    return _play(units, stage, ranks, keeps_gradient=True)


@wrong("1.5", "from the last to the first")
def backward_in_forward_order(units, stage, ranks):
    return _play(units, stage, ranks, forwards=True)


@wrong("1.5", "nothing of the gradient is left")
def gradient_share_lost(units, stage, ranks):
    return _play(units, stage, ranks, drops=True)


@wrong("1.5", "The backward of stage 3 needs whole")
def gathered_once(units, stage, ranks):
    return _play(units, stage, ranks, one_gather=True)


@wrong("1.5", "cut by itself")
def the_sum_is_cut(units, stage, ranks):
    return _play(units, stage, ranks, cut_the_sum=True)


@wrong("1.5", "is never freed")
def never_resharded_as_sums(units, stage, ranks):
    if stage < 3:
        return _play(units, stage, ranks)
    cut = [math.ceil(params / ranks) for params, _ in units]
    base, whole, live, grads, log = 14 * sum(cut), 0, 0, 0, []

    def say(word):
        log.append((word, base + whole + live + grads))

    say("start")
    for i in range(len(units)):
        whole += 2 * units[i][0]
        say(f"unshard {i}")
        live += units[i][1]
        say(f"forward {i}")
        say(f"reshard {i}")
    for i in range(len(units) - 1, -1, -1):
        whole += 2 * units[i][0]
        say(f"unshard {i}")
        grads += 2 * units[i][0]
        say(f"backward {i}")
        grads += 2 * cut[i] - 2 * units[i][0]
        say(f"reduce {i}")
        say(f"reshard {i}")
        live -= units[i][1]
        say(f"free {i}")
    whole = grads = 0
    say("zero_grad")
    return log
