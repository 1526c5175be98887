"""Model states: bytes of parameters, gradients and optimizer states a rank holds at each stage. Formulas: no torch.

Counts are exact and ints: a rank's share of P parameters is ceil(P / N), and the last share is padded. Step counters of
optimizers are left out. N is the world size. Stage 0 is data parallel, stage 1 shards the optimizer states, stage 2 the
gradients as well, and stage 3 the parameters as well. Source: ZeRO, arXiv 1910.02054, section 5.
"""

from dataclasses import dataclass

from .shares import known_stage, positive, share_of


@dataclass(frozen=True)
class Convention:
    """Bytes that one parameter costs. Sources count differently, so every number must say which convention it uses."""

    name: str
    parameter: int
    gradient: int
    optimizer: int  # master weights included

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.parameter, self.gradient, self.optimizer


CONVENTIONS = {convention.name: convention for convention in (
    Convention("16", 2, 2, 12),  # ZeRO: fp16 parameter and gradient; fp32 master, momentum, variance
    Convention("18", 2, 4, 12),  # the gradient in fp32; its fp16 form is freed as soon as it is added
    Convention("20", 2, 2, 16),  # both gradients, the fp32 one beside the optimizer (arXiv 2201.11990)
    Convention("fp32", 4, 4, 8),  # plain Adam
    Convention("fp32-sgd", 4, 4, 0),
    Convention("fp32-momentum", 4, 4, 4),
)}
ZERO, FP32 = CONVENTIONS["16"], CONVENTIONS["fp32"]


@dataclass(frozen=True)
class ModelStates:
    """Bytes on the rank that holds most."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    def __add__(self, other: "ModelStates") -> "ModelStates":
        """Of two parts of a model, which different numbers of ranks divide."""
        return ModelStates(self.parameters_bytes + other.parameters_bytes, self.gradients_bytes + other.gradients_bytes,
                           self.optimizer_bytes + other.optimizer_bytes)


def model_states(params: int, stage: int, ranks: int, convention: Convention = ZERO,
                 shard: int | None = None) -> ModelStates:
    """What a rank holds: gradients just before the optimizer's step, everything else after it.

    shard: elements that a rank owns, with the padding of every unit; without it ceil(P / N).
    Raises BadInput for a number that is not possible.
    """
    params, shard = positive("params", params), share_of(params, ranks, shard)
    whole = 3 - known_stage(stage)  # how many of the three kinds are not sharded
    return ModelStates(*(nbytes * (params if kind < whole else shard) for kind, nbytes in enumerate(convention.sizes)))


def largest_params(card_bytes: int, stage: int, ranks: int, convention: Convention = ZERO) -> int:
    """The largest number of parameters whose model states fit in `card_bytes` per rank; 0 if not even one does."""
    ranks = positive("ranks", ranks)
    whole, sharded = _whole_and_sharded(stage, convention)
    full, left = divmod(card_bytes, whole * ranks + sharded)  # parameters that each rank can own
    begun = min(ranks - 1, max(0, left - sharded) // whole) if whole else 0  # ranks that can own one more
    return full * ranks + begun


def fewest_ranks(params: int, stage: int, card_bytes: int, convention: Convention = ZERO) -> int | None:
    """The smallest world size at which the model states fit in `card_bytes` per rank; None if there is none."""
    params = positive("params", params)
    whole, sharded = _whole_and_sharded(stage, convention)
    left = card_bytes - whole * params
    if left < sharded:
        return None
    return -(-params // (left // sharded)) if sharded else 1


def paper_table1() -> dict[int, dict[str, tuple[int, ...]]]:
    """The paper's Table 1: bytes per rank at stages 1, 2 and 3, by world size and model."""
    models = {"7.5B": 7_500_000_000, "128B": 128 * 10**9, "1T": 10**12}
    return {ranks: {name: tuple(model_states(params, stage, ranks).total_bytes for stage in (1, 2, 3))
                    for name, params in models.items()} for ranks in (1, 4, 16, 64, 256, 1024)}


def _whole_and_sharded(stage: int, convention: Convention) -> tuple[int, int]:
    """Bytes per parameter that every rank holds, and bytes per parameter that the ranks divide."""
    whole = 3 - known_stage(stage)
    return sum(convention.sizes[:whole]), sum(convention.sizes[whole:])
