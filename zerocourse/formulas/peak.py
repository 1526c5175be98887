"""The peak of a step, from what may be in flight. Formulas: no torch.

While unit i computes its backward, a rank holds things that grow and shrink:

- parameters that are gathered (stage 3): the root's, unit i's, and those of the `prefetch` units that come next. With
  `in_flight=1` the farthest of them begins in the middle of unit i, when the reduction under way is over;
- buckets: that of what comes after the units (a last norm, a head), unit i's, which fills, and those of `in_flight`
  units before it, which are being reduced; below stage 2 the buckets of all units before it stay;
- from stage 2 on, slices of the gradients of all units before these;
- activations of unit i and of all units whose backward is still to come.

After the units comes what was before them (the embeddings), and then all of the root's buckets are there.
"""

from collections.abc import Sequence

from .memory import gpt2_block_params, head_activation_bytes, layer_activation_bytes


def states_peak(root: Sequence[int], units: Sequence[int], stage: int, ranks: int, prefetch: int = 1, in_flight: int = 1,
                element: int = 4, states: int = 8, activations: int = 0, head: int = 0,
                received: bool = False) -> int:
    """The most bytes of parameters, gradients, optimizer states and activations that a rank holds at any moment of a step.

    root: parameters before the units, and after them.   units: those of each unit, in the order of the forward. All are
        padded to a multiple of `ranks`.
    element: bytes of a parameter and of its gradient.   states: bytes of the optimizer's for one parameter.
    activations: bytes that each unit saves for its backward.   head: bytes of what computes after the units, at the loss.
    received: count also what the reductions under way receive, N - 1 slices of each bucket.
    Every unit is used once; it is not the first step, whose states are to come, and no gradient is left of an earlier one.
    """
    before, after = root
    whole = before + sum(units) + after
    share = whole // ranks
    at_the_loss = element * (before + after if stage == 3 else whole) + activations * len(units) + head
    moments = [at_the_loss]
    halves = [(max(0, prefetch - 1), 1), (prefetch, 0)] if in_flight == 1 and stage == 3 else [(prefetch, in_flight)]
    for now in range(-1, len(units)):  # -1: the last gradients of the root arrive
        for ahead, under_way in halves:
            gathered = before + after + sum(units[max(0, now - ahead) : now + 1]) if stage == 3 else whole
            in_buckets = now + 1 + under_way if stage > 1 else len(units)  # units from this one on that have one
            buckets = (before if now < 0 else 0) + after + sum(units[max(0, now) : in_buckets])
            reduced = sum(units[in_buckets:]) // ranks
            arriving = sum(units[now + 1 : now + 1 + under_way]) * (ranks - 1) // ranks if received else 0
            moments.append(element * (gathered + buckets + reduced + arriving) + activations * (now + 1))
    return max(moments) + states * (share if stage else whole) + (element * share if stage == 3 else 0)


def gpt2_step_peak(config, stage: int, ranks: int, micro_batch: int, seq: int) -> int:
    """An estimate for a `GPTConfig` in fp32 with Adam: `states_peak` with the activations of Korthikanti et al. 2022
    and what reductions receive.

    prefetch and in_flight are `shard`'s defaults. Not in it: what an operation holds for a moment.
    """
    block = gpt2_block_params(config.n_embd, config.bias)
    after = config.n_embd * (1 + config.bias) + (0 if config.tied else config.vocab_size * config.n_embd)
    before = config.params - config.n_layer * block - after
    saved = layer_activation_bytes(micro_batch, seq, config.n_embd, config.n_head, recompute="selective", element=4)
    head = head_activation_bytes(micro_batch, seq, config.n_embd, config.vocab_size, 4)
    return states_peak((before, after), [block] * config.n_layer, stage, ranks, activations=saved, head=head,
                       received=True)
