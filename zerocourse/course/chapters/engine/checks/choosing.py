"""The check of 11.6: a configuration for a machine, and the bytes that speak for it."""

import itertools
import operator

from .....engine.config import Config
from .....engine.config.explain import counts
from .....models.gpt2 import CONFIGS
from ....checks import Trial, exercise

MICRO_BATCHES = 1, 2, 4, 8, 16
GIB = 2**30
MACHINES = [("gpt2-medium", 2, 16 * GIB, 32), ("gpt2-xl", 8, 8 * GIB, 64), ("gpt2-xl", 8, 6 * GIB, 64), ("gpt2-xl", 8, 24 * GIB, 64)]
OTHERS = [("gpt2-large", 4, 12 * GIB, 32), ("gpt2-xl", 4, 24 * GIB, 32), ("gpt2-large", 8, 5 * GIB, 64), ("gpt2-xl", 8, 16 * GIB, 128),
          ("gpt2-medium", 2, 12_073_711_616, 32)]  # exactly the peak of the best choice
MORE = [("gpt2", 2, 80 * GIB, 64), ("gpt2", 2, 80 * GIB, 24), ("gpt2-medium", 2, 7 * GIB, 32), ("gpt2", 1, 16 * GIB, 8)]


def config_of(stage, micro_batch, checkpointing, ranks, batch):
    file = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro_batch, "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage}, "activation_checkpointing": {"enabled": checkpointing}}
    return Config.load(file, ranks)


@exercise(
    "11.6", "Choose for three machines, and defend it", minutes=30, difficulty=2, cases=MACHINES,
    trials=[Trial(OTHERS), Trial(MORE)],
    mistakes={
        "only the states": {"needs": "total_bytes"},
        "strictly less": {"fits": operator.lt},
        "never stage 0": {"stages": (1, 2, 3)},
        "small micro-batches": {"micros": MICRO_BATCHES[:-1]},
        "without accumulation": {"sends": "of a micro-batch"},
        "always stage 3": {"stages": (3,)},
        "least memory": {"order": ("peak", "sent", "checkpointing", "micro-batches")},
        "checkpointing for nothing": ({"order": ("sent", "micro-batches", "checkpointing", "peak")}, {"checkpointings": (True,)}),
        "never checkpointing": {"checkpointings": (False,)},
        "many micro-batches": {"order": ("sent", "checkpointing", "peak", "micro-batches")},
        "holds more": {"order": ("sent", "checkpointing", "micro-batches", "stage")},
        "all ranks": {"whole": lambda sent, ranks: sent * ranks},
    })
def choose(model, ranks, card_bytes, batch, *, needs="peak_bytes", sends="in a step", stages=range(4), micros=MICRO_BATCHES,
           checkpointings=(False, True), order=("sent", "checkpointing", "micro-batches", "peak", "stage"), whole=lambda sent, ranks: sent,
           fits=operator.le):
    """The best of all settings that fit. order: what is compared first, then what decides between equals."""
    fitting = []
    for stage, micro, checkpointing in itertools.product(stages, micros, checkpointings):
        if batch % (micro * ranks):
            continue
        config = config_of(stage, micro, checkpointing, ranks, batch)
        here = counts(config, CONFIGS[model], ranks)
        sent = here["sent_bytes"] if sends == "in a step" else counts(config, CONFIGS[model], ranks, accumulation=1)["sent_bytes"]
        if fits(here[needs], card_bytes):
            ranked = {"sent": sent, "checkpointing": checkpointing, "micro-batches": batch // (micro * ranks),
                      "peak": here["peak_bytes"], "stage": stage}
            chosen = {"stage": stage, "micro_batch": micro, "checkpointing": checkpointing, "sent_bytes": whole(sent, ranks)}
            fitting.append(([ranked[name] for name in order], chosen))
    return min(fitting, key=lambda each: each[0])[1] if fitting else None
