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

from .activations import head_activation_bytes, layer_activation_bytes
from .shares import padded_elements, positive
from .states import FP32, ZERO, Convention
from .transformer import gpt2_block_params


def states_peak(root: Sequence[int], units: Sequence[int], stage: int, ranks: int, prefetch: int = 1,
                in_flight: int = 1, convention: Convention = FP32, activations: int = 0, recomputed: int = 0,
                head: int = 0, received: bool = False, accumulated: bool = False) -> int:
    """The most bytes of model states and activations that a rank holds at any moment of a step.

    root: parameters before the units, and after them.   units: those of each unit, in the order of the forward. All are
        padded to a multiple of `ranks`.
    activations: bytes that each unit saves for its backward.   recomputed: bytes that it makes again there.
    head: bytes of what computes after the units, at the loss.
    received: count also what the reductions under way receive, N - 1 slices of each bucket.
    accumulated: the gradients of earlier micro-batches are there already, from stage 2 on this rank's slices of them.
    Every unit is used once, and it is not the first step, whose optimizer states are to come.
    """
    before, after = root
    whole = before + sum(units) + after
    share = whole // ranks
    earlier = (share if stage > 1 else whole) if accumulated else 0
    at_the_loss = (convention.parameter * (before + after if stage == 3 else whole) + convention.gradient * earlier
                   + activations * len(units) + head)
    moments = [at_the_loss]
    halves = [(max(0, prefetch - 1), 1), (prefetch, 0)] if in_flight == 1 and stage == 3 else [(prefetch, in_flight)]
    for now in range(-1, len(units)):  # -1: the last gradients of the root arrive
        for ahead, under_way in halves:
            gathered = before + after + sum(units[max(0, now - ahead) : now + 1]) if stage == 3 else whole
            in_buckets = now + 1 + under_way if stage > 1 else len(units)  # units from this one on that have one
            gradients = (before if now < 0 else 0) + after + sum(units[max(0, now) : in_buckets])
            gradients = gradients + (earlier or sum(units[in_buckets:]) // ranks) if stage > 1 else earlier or gradients
            arriving = sum(units[now + 1 : now + 1 + under_way]) * (ranks - 1) // ranks if received else 0
            moments.append(convention.parameter * gathered + convention.gradient * (gradients + arriving)
                           + activations * (now + 1) + (recomputed if now >= 0 else 0))
    optimizer = convention.optimizer * (share if stage else whole)
    return max(moments) + optimizer + (convention.parameter * share if stage == 3 else 0)


def gpt2_peak_bytes(config, stage: int, ranks: int, micro_batch: int, seq: int, convention: Convention = ZERO,
                    recompute: str = "selective", prefetch: int = 1, in_flight: int = 1,
                    accumulated: bool = False) -> int:
    """An estimate of a step's peak for a `GPTConfig`: `states_peak` with the activations of Korthikanti et al. 2022.

    prefetch and in_flight are `shard`'s, with its defaults; recompute is `layer_activation_bytes`'s, "full" also has
    one layer's activations while they are made again. accumulated: it is not the step's first micro-batch.
    Not in it: what one operation holds for a moment, and a framework's own memory. Raises BadInput.
    """
    block, ranks = gpt2_block_params(config.n_embd, config.bias), positive("ranks", ranks)
    after = 2 * config.n_embd + (0 if config.tied else config.vocab_size * config.n_embd)
    before = padded_elements(config.params - config.n_layer * block, ranks) - after
    element, shape = convention.parameter, (micro_batch, seq, config.n_embd)
    saved = layer_activation_bytes(*shape, config.n_head, recompute=recompute, element=element)
    made = layer_activation_bytes(*shape, config.n_head, recompute="selective", element=element)
    return states_peak((before, after), [padded_elements(block, ranks)] * config.n_layer, stage, ranks, prefetch,
                       in_flight, convention, activations=saved, recomputed=made - saved if recompute == "full" else 0,
                       head=head_activation_bytes(*shape, config.vocab_size, element), received=True,
                       accumulated=accumulated)
