"""What a bench measures: the modes, and one set-up that is the same for all of them. Imports no torch."""

from dataclasses import dataclass, replace

from ..errors import BadInput
from ..formulas.transformer import gpt2_params

BASELINE = "torch-ddp"
AGAIN = "again"  # the control in a race: the baseline once more, which should take as long as itself
ALONE = "alone"  # the floor in a race: a rank that computes its part of a step and talks to nobody


@dataclass(frozen=True)
class BenchMode:
    """One way to train. `stage` is the ZeRO stage whose share it holds, `wants` a package that it needs."""

    name: str
    label: str
    stage: int
    matches: tuple[str, ...] = ()  # the peers that our mode is measured against, besides the baseline
    buckets: tuple[int, ...] = ()  # sizes that are tried, in `unit`; the fastest is measured
    unit: str = ""
    wants: str = "torch"
    keep: bool = False  # parameters stay gathered from forward to backward

    @property
    def ours(self) -> bool:
        return not self.buckets


MIB, BLOCKS, ELEMENTS = "MiB", "blocks", "elements"
DS_BUCKETS = (1_000_000, 4_000_000, 16_000_000)
MODES = {mode.name: mode for mode in (
    BenchMode("ddp", "our stage 0", 0, ("deepspeed0",)),
    BenchMode("zero1", "our stage 1", 1, ("torch-zro", "deepspeed1")),
    BenchMode("zero2", "our stage 2", 2, ("torch-zro", "deepspeed2")),
    BenchMode("zero3", "our stage 3", 3, ("fsdp2", "deepspeed3")),
    BenchMode("zero3-keep", "our stage 3, kept after forward", 3, ("fsdp2-keep",), keep=True),
    BenchMode(BASELINE, "torch DDP", 0, buckets=(4, 25, 100), unit=MIB),
    BenchMode("torch-zro", "torch DDP + ZeroRedundancyOptimizer", 1, buckets=(4, 25, 100), unit=MIB),
    BenchMode("fsdp2", "torch FSDP2", 3, buckets=(1, 2, 4), unit=BLOCKS),
    BenchMode("fsdp2-keep", "torch FSDP2, kept after forward", 3, buckets=(1, 2, 4), unit=BLOCKS, keep=True),
    *(BenchMode(f"deepspeed{stage}", f"DeepSpeed stage {stage}", stage, buckets=DS_BUCKETS, unit=ELEMENTS,
                wants="deepspeed") for stage in range(4)),
)}


@dataclass(frozen=True)
class BenchSettings:
    """One set-up. A step is an optimizer step on `global_batch` samples of `tokens` tokens, divided among the ranks."""

    layers: int = 8
    width: int = 512
    vocab: int = 8192
    tokens: int = 128
    global_batch: int = 8
    ranks: int = 2
    threads: int = 1  # of each rank
    rounds: int = 7  # of timed steps, each mode one step in turn
    tuning_rounds: int = 3  # with which a peer's bucket size is chosen; 0: the middle one is taken
    steps: int = 7  # whose losses are compared; the last five are metered, the very last by the ledger
    budget: float | None = None  # seconds after which no round begins
    lr: float = 1e-3
    seed: int = 0
    source: str | None = None  # text: a file or a folder; None: Python's standard library
    fresh: bool = True  # memory of each mode in new processes; False: in the same ones, quicker and for tests
    plant: str | None = None  # tests only: the mode that trains wrongly

    def __post_init__(self):
        for name in ("layers", "width", "vocab", "tokens", "global_batch", "ranks", "threads", "rounds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise BadInput(f"{name} must be a positive whole number, not {value!r}.")
        if self.global_batch % self.ranks:
            raise BadInput(f"the global batch of {self.global_batch} samples does not divide among {self.ranks} ranks: "
                           f"it must be a multiple of {self.ranks}.")
        if self.vocab < 256:
            raise BadInput(f"vocab must be at least 256, since the tokens are bytes, not {self.vocab}.")
        if self.width > 64 and self.width % 64:  # a head is 64 wide
            raise BadInput(f"width must be at most 64, or a multiple of it, not {self.width}.")
        if self.budget is not None and not self.budget > 0:
            raise BadInput(f"the budget must be more than 0 seconds, not {self.budget!r}.")

    def many_units(self) -> "BenchSettings":
        """The same bench of a model of 96 small units with short samples, in which what a unit costs shows."""
        return replace(self, layers=96, width=128, vocab=256, tokens=32)

    @property
    def heads(self) -> int:
        return max(1, self.width // 64)

    @property
    def micro_batch(self) -> int:
        return self.global_batch // self.ranks

    @property
    def params(self) -> int:
        return gpt2_params(self.layers, self.width, self.vocab, self.tokens)


def find_modes(names: str | None, installed) -> list[BenchMode]:
    """The modes named, "zero3,fsdp2", with the baseline; None: all that are installed.

    installed(package) says whether it can be imported. Raises BadInput for a mode that is unknown or not installed.
    """
    if names is None:
        return [mode for mode in MODES.values() if installed(mode.wants)]
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise BadInput(f"{names!r} names no mode: there are {', '.join(MODES)}.")
    for name in chosen:
        if name not in MODES:
            raise BadInput(f"There is no mode {name!r}: there are {', '.join(MODES)}.")
        if not installed(MODES[name].wants):
            raise BadInput(f"The mode {name!r} needs the package {MODES[name].wants}, which is not installed.")
    return [mode for mode in MODES.values() if mode.name in {*chosen, BASELINE}]
