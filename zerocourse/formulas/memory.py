"""How many bytes a rank holds and sends, by formula. Knows nothing of torch; measures nothing.

Counts are exact and ints: a rank's share of P parameters is ceil(P / N), the last one padded. Step counters of
optimizers are left out. N is the world size, G the number of micro-batches accumulated in an optimizer step.
Stage 0 is data parallel, 1 shards the optimizer states, 2 the gradients too, 3 the parameters too.
Source: ZeRO, arXiv 1910.02054, where nothing else is named.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from ..errors import BadInput


@dataclass(frozen=True)
class Convention:
    """Bytes that one parameter costs. Sources count differently, so every number needs to say which it means."""

    name: str
    parameter: int
    gradient: int
    optimizer: int  # master weights included

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.parameter, self.gradient, self.optimizer


CONVENTIONS = {convention.name: convention for convention in (
    Convention("16", 2, 2, 12),  # ZeRO: fp16 parameter and gradient; fp32 master, momentum, variance
    Convention("18", 2, 4, 12),  # the gradient in fp32, its fp16 form gone as soon as it is added
    Convention("20", 2, 2, 16),  # both gradients, the fp32 one beside the optimizer (arXiv 2201.11990)
    Convention("fp32", 4, 4, 8),  # plain Adam
    Convention("fp32-sgd", 4, 4, 0),
    Convention("fp32-momentum", 4, 4, 4),
)}
ZERO = CONVENTIONS["16"]


# --- model states (section 5) ---

@dataclass(frozen=True)
class ModelStates:
    """Bytes on the rank that holds most."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes


def model_states(params: int, stage: int, ranks: int, convention: Convention = ZERO,
                 shard: int | None = None) -> ModelStates:
    """What a rank holds: gradients just before the optimizer's step, the rest after it.

    shard: elements that a rank owns, with the padding of every unit; without it ceil(P / N).
    Raises BadInput when a number cannot be.
    """
    params, shard = _positive("params", params), _share(params, ranks, shard)
    whole = 3 - _stage(stage)  # of the three kinds, so many are not sharded
    return ModelStates(*(nbytes * (params if kind < whole else shard) for kind, nbytes in enumerate(convention.sizes)))


def largest_params(card_bytes: int, stage: int, ranks: int, convention: Convention = ZERO) -> int:
    """The most parameters whose model states fit in `card_bytes` a rank, 0 when not even one does."""
    ranks = _positive("ranks", ranks)
    whole, sharded = _whole_and_sharded(stage, convention)
    rows, left = divmod(card_bytes, whole * ranks + sharded)  # in a row each rank owns one parameter
    begun = min(ranks - 1, max(0, left - sharded) // whole) if whole else 0  # of the last row
    return rows * ranks + begun


def fewest_ranks(params: int, stage: int, card_bytes: int, convention: Convention = ZERO) -> int | None:
    """The smallest world size at which the model states fit in `card_bytes` a rank, None when none will do."""
    params = _positive("params", params)
    whole, sharded = _whole_and_sharded(stage, convention)
    left = card_bytes - whole * params
    if left < sharded:
        return None
    return -(-params // (left // sharded)) if sharded else 1


def paper_table1() -> dict[int, dict[str, tuple[int, int, int]]]:
    """The paper's Table 1: bytes a rank at stages 1, 2 and 3, by world size and model."""
    models = {"7.5B": 7_500_000_000, "128B": 128 * 10**9, "1T": 10**12}
    return {ranks: {name: tuple(model_states(params, stage, ranks).total_bytes for stage in (1, 2, 3))
                    for name, params in models.items()} for ranks in (1, 4, 16, 64, 256, 1024)}


# --- other people's estimators, counting as they do ---

def deepspeed_zero2_gpu_bytes(params: int, ranks: int) -> int:
    """DeepSpeed's estimate_zero2_model_states_mem_needs without offload."""
    return 2 * params + 18 * params // ranks


def deepspeed_zero3_gpu_bytes(params: int, largest_layer: int, ranks: int) -> int:
    """DeepSpeed's estimate_zero3_model_states_mem_needs without offload; `largest_layer` in parameters."""
    return 4 * largest_layer + 18 * params // ranks


def deepspeed_host_bytes(params: int, ranks_per_node: int) -> int:
    """The same two, host memory: every process first builds the model in fp32, and half as much again is kept spare.

    params: of the largest layer where ZeRO-3 builds the model under zero.Init.
    """
    return 6 * params * ranks_per_node


def accelerate_bytes(params: int, dtype: str = "float16") -> int:
    """Accelerate's `estimate-memory` for training with Adam, which takes the largest of its numbers, not their sum.

    It divides by 2^30 and prints "GB".
    """
    model = 4 * params
    gradients = model if dtype == "float32" else model + model // 2
    optimizer = 2 * model
    step = 4 * model if dtype == "float32" else optimizer
    return max(model, gradients, optimizer, step)


# --- communication (section 7) ---

def bus_factor(collective: str, ranks: int) -> Fraction:
    """What a rank sends in one collective, as a share of the whole buffer. Raises BadInput."""
    ring = Fraction(ranks - 1, _positive("ranks", ranks))
    factors = {"all_reduce": 2 * ring, "reduce_scatter": ring, "all_gather": ring, "broadcast": Fraction(1),
               "reduce": Fraction(1)}
    if collective not in factors:
        raise BadInput(f"There is no bus factor of {collective!r}: there is one of {', '.join(factors)}.")
    return factors[collective]


@dataclass(frozen=True)
class Passes:
    """How often all parameters, and all gradients, travel in one optimizer step.

    A pass is an all-gather or a reduce-scatter of everything; an all-reduce is two.
    """

    parameters: int
    gradients: int

    @property
    def total(self) -> int:
        return self.parameters + self.gradients


def passes(stage: int, accumulation: int = 1, scheme: str = "zero") -> Passes:
    """The passes of an optimizer step of `accumulation` micro-batches.

    scheme: "zero", "keep" (stage 3 keeps its parameters between forward and backward), or "deepspeed" (its defaults:
    stages 1 and 2 all-reduce a bucket and keep a slice of it, stage 3 is "keep" on models below 10^9 parameters).
    """
    G, stage = _positive("accumulation", accumulation), _stage(stage)
    if scheme not in ("zero", "keep", "deepspeed"):
        raise BadInput(f"There is no scheme {scheme!r}: there are zero, keep and deepspeed.")
    if stage == 0:
        return Passes(0, 2)  # summed up locally, then one all-reduce
    if stage == 3:
        return Passes(2 * G if scheme == "zero" else G, G)
    reductions = G if stage == 2 else 1  # stage 2 has nowhere to sum up locally
    return Passes(1, 2 * reductions if scheme == "deepspeed" else reductions)


def sent_elements(params: int, stage: int, ranks: int, accumulation: int = 1, scheme: str = "zero",
                  shard: int | None = None) -> int:
    """Elements that a rank sends in one optimizer step: N - 1 shards a pass. `shard` as for `model_states`."""
    return passes(stage, accumulation, scheme).total * (ranks - 1) * _share(params, ranks, shard)


def sent_bytes(params: int, stage: int, ranks: int, accumulation: int = 1, scheme: str = "zero",
               shard: int | None = None, convention: Convention = ZERO) -> int:
    """The same in bytes, when parameters and gradients travel as the convention stores them."""
    times = passes(stage, accumulation, scheme)
    element = times.parameters * convention.parameter + times.gradients * convention.gradient
    return element * (ranks - 1) * _share(params, ranks, shard)


# --- activations (Korthikanti et al., arXiv 2205.05198) ---

def layer_activation_bytes(micro_batch: int, seq: int, width: int, heads: int, tensor_parallel: int = 1,
                           sequence_parallel: bool = False, recompute: str = "none", element: int = 2) -> int:
    """What one transformer layer keeps for its backward; dropout masks, of a byte each, are counted.

    recompute: "none"; "selective", which makes the attention scores again, as fused attention does; or "full", which
    keeps the layer's input alone. sequence_parallel shards what tensor parallelism leaves whole; with "full" this is
    ZeRO-R's partitioning of checkpoints, P_a. element: bytes of a number.
    """
    if recompute not in ("none", "selective", "full"):
        raise BadInput(f"recompute is none, selective or full, not {recompute!r}.")
    t = _positive("tensor_parallel", tensor_parallel)
    whole, sharded = 4 * element + 2, 12 * element  # 10 and 24 in fp16, a token and unit of width
    scores = (2 * element + 1) * Fraction(_positive("heads", heads) * seq, width)  # 5as/h
    if recompute == "full":
        whole, sharded = element, 0
    if recompute != "none":
        scores = 0
    per_token = Fraction(whole, t if sequence_parallel else 1) + (sharded + scores) / Fraction(t)
    return ceil(_positive("micro_batch", micro_batch) * _positive("seq", seq) * width * per_token)


def head_activation_bytes(micro_batch: int, seq: int, width: int, vocab: int, element: int = 2) -> int:
    """The inputs of the last LayerNorm and of the head, and the logits in fp32: 4sbh(1 + v/h) in fp16."""
    return micro_batch * seq * (2 * element * width + 4 * vocab)


def tensor_parallel_elements(micro_batch: int, seq: int, width: int, partition_checkpoints: bool = False) -> int:
    """Elements that a layer's collectives carry with recomputation; of each a rank sends (t-1)/t.

    Six all-reduces, each a reduce-scatter and an all-gather, make 12; partitioned checkpoints (P_a) add an all-gather.
    """
    return (13 if partition_checkpoints else 12) * micro_batch * seq * width


# --- GPT-2 ---

def gpt2_block_params(width: int, bias: bool = True) -> int:
    """Of one transformer block: 12C^2 in matrices, 4C in LayerNorms, 9C in biases."""
    return 12 * width**2 + 4 * width + (9 * width if bias else 0)


def gpt2_params(layers: int, width: int, vocab: int = 50257, block_size: int = 1024, tied: bool = True,
                bias: bool = True) -> int:
    """Of the whole model; `bias` is that of the linear layers, LayerNorms always have theirs."""
    embeddings = ((1 if tied else 2) * vocab + block_size) * width
    return embeddings + layers * gpt2_block_params(width, bias) + 2 * width


def gpt2_peak_bytes(config, stage: int, ranks: int, micro_batch: int, seq: int, convention: Convention = ZERO,
                    recompute: str = "selective") -> int:
    """An estimate of a step's peak for a `GPTConfig`: model states, activations, and what a sharding rank has whole.

    That is, besides its shard, gradients of the root (the embeddings) and of a block from stage 2 on, and at stage 3
    parameters of the root, of a block, and of the next one on its way. Not in it: a framework's own memory.
    """
    block = gpt2_block_params(config.n_embd, config.bias)
    root = config.params - config.n_layer * block
    gradients = root + block if stage >= 2 and ranks > 1 else 0
    parameters = root + 2 * block if stage == 3 and ranks > 1 else 0
    element = convention.parameter
    return (model_states(config.params, stage, ranks, convention).total_bytes
            + parameters * convention.parameter + gradients * convention.gradient
            + config.n_layer * layer_activation_bytes(micro_batch, seq, config.n_embd, config.n_head,
                                                      recompute=recompute, element=element)
            + head_activation_bytes(micro_batch, seq, config.n_embd, config.vocab_size, element))


def _positive(name: str, value) -> int:
    try:
        whole = int(value)
    except (TypeError, ValueError, OverflowError):
        whole = 0
    if whole != value or whole < 1:
        raise BadInput(f"{name} must be a positive whole number, not {value!r}.")
    return whole


def _stage(stage: int) -> int:
    if stage not in (0, 1, 2, 3):
        raise BadInput(f"stage must be 0, 1, 2 or 3, not {stage!r}.")
    return stage


def _share(params: int, ranks: int, shard: int | None) -> int:
    share = -(-_positive("params", params) // _positive("ranks", ranks))
    return share if shard is None else shard


def _whole_and_sharded(stage: int, convention: Convention) -> tuple[int, int]:
    """Bytes per parameter that every rank holds, and bytes per parameter that the ranks divide."""
    whole = 3 - _stage(stage)
    return sum(convention.sizes[:whole]), sum(convention.sizes[whole:])
