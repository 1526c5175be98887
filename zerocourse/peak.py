"""The peak of a step, from what may be in flight. Formulas: no torch.

While unit i computes its backward, a rank holds things that grow and shrink:

- parameters that are gathered (stage 3): the root's, unit i's, and those of the `prefetch` units that come next;
- buckets: that of what comes after the units (a last norm, a head), unit i's, which fills, and those of `in_flight`
  units before it, which are being reduced; below stage 2 the buckets of all units before it stay;
- from stage 2 on, slices of the gradients of all units before these;
- activations of unit i and of all units whose backward is still to come.

After the units comes what was before them (the embeddings), and then all of the root's buckets are there.
"""

from collections.abc import Sequence

from .memory import gpt2_block_params, head_activation_bytes, layer_activation_bytes


def states_peak(root: Sequence[int], units: Sequence[int], stage: int, ranks: int, prefetch: int = 1, in_flight: int = 1,
                element: int = 4, states: int = 8, activations: int = 0, head: int = 0) -> int:
    """The most bytes of parameters, gradients, optimizer states and activations that a rank holds at any moment of a step.

    root: parameters before the units, and after them.   units: those of each unit, in the order of the forward. All are
        padded to a multiple of `ranks`.
    element: bytes of a parameter and of its gradient.   states: bytes of the optimizer's for one parameter.
    activations: bytes that each unit saves for its backward.   head: bytes of what computes after the units, at the loss.
    Every unit is used once; it is not the first step, whose states are to come, and no gradient is left of an earlier one.
    """
    before, after = root
    whole = before + sum(units) + after
    share = whole // ranks
    at_the_loss = element * (before + after if stage == 3 else whole) + activations * len(units) + head
    moments = [at_the_loss]
    for now in range(-1, len(units)):  # -1: the last gradients of the root arrive
        gathered = before + after + sum(units[max(0, now - prefetch) : now + 1]) if stage == 3 else whole
        there = now + 1 + in_flight if stage > 1 else len(units)  # buckets of units before this one
        buckets = (before if now < 0 else 0) + after + sum(units[max(0, now) : there])
        reduced = sum(units[there:]) // ranks
        moments.append(element * (gathered + buckets + reduced) + activations * (now + 1))
    return max(moments) + states * (share if stage else whole) + (element * share if stage == 3 else 0)


def gpt2_step_peak(config, stage: int, ranks: int, micro_batch: int, seq: int) -> int:
    """An estimate for a `GPTConfig` in fp32 with Adam: `states_peak` with the activations of Korthikanti et al. 2022,
    and what the reductions under way receive, N - 1 slices of a block each.

    prefetch and in_flight are `shard`'s defaults. Not in it: what an operation holds for a moment.
    """
    block = gpt2_block_params(config.n_embd, config.bias)
    after = config.n_embd * (1 + config.bias) + (0 if config.tied else config.vocab_size * config.n_embd)
    before = config.params - config.n_layer * block - after
    saved = layer_activation_bytes(micro_batch, seq, config.n_embd, config.n_head, recompute="selective", element=4)
    head = head_activation_bytes(micro_batch, seq, config.n_embd, config.vocab_size, 4)
    held = states_peak((before, after), [block] * config.n_layer, stage, ranks, activations=saved, head=head)
    return held + 4 * block * (ranks - 1) // ranks
