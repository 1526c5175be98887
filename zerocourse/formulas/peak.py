"""The peak of a step, from what may be under way at a time. Formulas: no torch.

While unit i computes its backward, a rank holds several things that grow and shrink:

- parameters that are gathered (stage 3): the root's, unit i's, and those of the `prefetch` units that come next. With
  `in_flight=1` the last of these gathers begins in the middle of unit i, when the reduction under way is complete;
- buckets: the one of what comes after the units (a last norm, a head), the one of unit i, which fills, and those of the
  `in_flight` units before it, which are being reduced; below stage 2 the buckets of all units before it stay;
- from stage 2 on, this rank's slices of the gradients of all units before these;
- activations of unit i and of all units whose backward is still to come.

The backward ends with what came before the units (the embeddings), and at that time all buckets of the root are there.
"""

from collections.abc import Sequence

from .activations import head_activation_bytes, layer_activation_bytes
from .gpt2_config import GPTConfig
from .shares import padded_elements, positive
from .states import FP32, ZERO, Convention
from .transformer import gpt2_block_params


def states_peak(root: Sequence[int], units: Sequence[int], stage: int, ranks: int, prefetch: int = 1,
                in_flight: int = 1, convention: Convention = FP32, activations: int = 0, recomputed: int = 0,
                head: int = 0, received: bool = False, accumulated: bool = False, offloaded: bool = False,
                offloaded_parameters: bool = False, experts: Sequence[int] = (), same_experts: int = 1) -> int:
    """The most bytes of model states and activations that a rank holds at any moment of a step.

    root: parameters of the root before the units, and after them.   units: parameters of each unit, in the order of the
        forward. All of these are padded to a multiple of `ranks`.
    activations: bytes that each unit saves for its backward.   recomputed: bytes that it computes again there.
    head: bytes of what is computed after the units, at the loss.
    received: also count the memory that receives the reductions under way, N - 1 slices of each bucket.
    accumulated: gradients of earlier micro-batches are there as well (from stage 2 on, this rank's slices of them).
    offloaded: the optimizer's part is elsewhere (count it with 0 bytes), and a gradient leaves the device when it is reduced: one
        slice may be on its way.
    offloaded_parameters: so are this rank's slices of the parameters (stage 3).
    experts: parameters of the experts of each unit that this rank has, beside `units`, which `same_experts` ranks divide.
    Every unit is used once. The step is not the first one, in which the optimizer states are still to be made.
    """
    halves = [(max(0, prefetch - 1), 1), (prefetch, 0)] if in_flight == 1 and stage == 3 else [(prefetch, in_flight)]

    def held(root: Sequence[int], units: Sequence[int], ranks: int) -> list[int]:
        """Bytes of model states at the loss, and at each moment of the backward."""
        before, after = root
        whole = before + sum(units) + after
        share = whole // ranks
        earlier = (share if stage > 1 else whole) if accumulated else 0
        drops = stage > 1 or offloaded and not accumulated  # is a bucket dropped when it is reduced?
        moments = [convention.parameter * (before + after if stage == 3 else whole) + convention.gradient * earlier]
        for now in range(-1, len(units)):  # -1: the root's last gradients become complete
            for ahead, under_way in halves:
                gathered = before + after + sum(units[max(0, now - ahead) : now + 1]) if stage == 3 else whole
                in_buckets = now + 1 + under_way if drops else len(units)  # the units from `now` up to here have a bucket
                gradients = (before if now < 0 else 0) + after + sum(units[max(0, now) : in_buckets])
                reduced = units[in_buckets:] if not offloaded else units[in_buckets : in_buckets + 1] if stage > 1 else ()
                slices = earlier or sum(reduced) // ranks
                gradients = gradients + slices if drops else earlier or gradients
                arriving = sum(units[now + 1 : now + 1 + under_way]) * (ranks - 1) // ranks if received else 0
                moments.append(convention.parameter * gathered + convention.gradient * (gradients + arriving))
        always = convention.optimizer * (share if stage else whole) + convention.parameter * share * (stage == 3 and not offloaded_parameters)
        return [moment + always for moment in moments]

    of_activations = [activations * len(units) + head]
    of_activations += [activations * (now + 1) + (recomputed if now >= 0 else 0) for now in range(-1, len(units)) for _ in halves]
    of_experts = held((0, 0), experts, same_experts) if experts else [0] * len(of_activations)
    return max(map(sum, zip(held(root, units, ranks), of_experts, of_activations, strict=True)))


def decoder_peaks(root: tuple[int, int], block: int, layers: int, stage: int, ranks: int, convention: Convention, kept: int, recomputed: int,
                  head: int, late: int, accumulated: bool = False, offloaded: bool = False,
                  offloaded_parameters: bool = False, experts: int = 0, same_experts: int = 1) -> tuple[int, int]:
    """(the peak while blocks compute their backward, the peak when it ends), in bytes.

    root: parameters before the blocks and after them.   block: of each.   kept, recomputed, head: activations of a layer and at the loss, as
    for `states_peak`; so are experts, of each block, and same_experts.
    late: bytes of the embedding's gradient, which is in no bucket yet when the backward ends.
    """
    def peak_with(activations: int = 0, recomputed: int = 0, head: int = 0) -> int:
        return states_peak((padded_elements(sum(root), ranks) - root[1], root[1]), [padded_elements(block, ranks)] * layers, stage, ranks,
                           convention=convention, activations=activations, recomputed=recomputed, head=head, accumulated=accumulated,
                           offloaded=offloaded, offloaded_parameters=offloaded_parameters,
                           experts=[padded_elements(experts, same_experts)] * layers if experts else (), same_experts=same_experts)

    return peak_with(kept, recomputed, head), peak_with() + late


def gpt2_peak_bytes(config: GPTConfig, stage: int, ranks: int, micro_batch: int, seq: int, convention: Convention = ZERO,
                    recompute: str = "selective", prefetch: int = 1, in_flight: int = 1,
                    accumulated: bool = False, offloaded: bool = False, offloaded_parameters: bool = False) -> int:
    """An estimate of a step's peak: `states_peak` with the activations of Korthikanti et al. 2022.

    prefetch and in_flight mean what they mean for `shard`, and have its defaults; recompute means what it means for
    `layer_activation_bytes`, and "full" also counts one layer's activations while they are computed again.
    accumulated: it is not the step's first micro-batch.   offloaded, offloaded_parameters: as for `states_peak`.
    Not counted: what one operation holds for a moment, and a framework's own memory. Raises BadInput.
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
                       accumulated=accumulated, offloaded=offloaded, offloaded_parameters=offloaded_parameters)
