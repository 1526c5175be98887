"""The check of 11.6: a configuration for a machine, and the bytes that speak for it."""

import itertools

from .....engine.config import Config
from .....engine.config.explain import counts
from .....models.gpt2 import CONFIGS
from ....checks import Trial, exercise

MICRO_BATCHES = 1, 2, 4, 8, 16
GIB = 2**30
MACHINES = [("gpt2-medium", 2, 16 * GIB, 32), ("gpt2-xl", 8, 8 * GIB, 64), ("gpt2-xl", 8, 6 * GIB, 64), ("gpt2-xl", 8, 24 * GIB, 64)]
OTHERS = [("gpt2-large", 4, 12 * GIB, 32), ("gpt2-xl", 4, 24 * GIB, 32), ("gpt2-large", 8, 5 * GIB, 64), ("gpt2-xl", 8, 16 * GIB, 128)]


def config_of(stage, micro_batch, checkpointing, ranks, batch):
    file = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": micro_batch, "bf16": {"enabled": True},
            "zero_optimization": {"stage": stage}, "activation_checkpointing": {"enabled": checkpointing}}
    return Config.load(file, ranks)


@exercise(
    "11.6", "Choose for three machines, and defend it", minutes=30, difficulty=2, cases=MACHINES,
    trials=[Trial(OTHERS)],
    mistakes={
        "only the states": {"needs": "total_bytes"},
        "without accumulation": {"sends": "of a micro-batch"},
        "always stage 3": {"stages": (3,)},
        "least memory": {"order": ("peak", "sent", "checkpointing", "micro-batches")},
        "checkpointing for nothing": ({"order": ("sent", "micro-batches", "checkpointing", "peak")}, {"checkpointings": (True,)}),
        "never checkpointing": {"checkpointings": (False,)},
        "many micro-batches": {"order": ("sent", "checkpointing", "peak", "micro-batches")},
        "holds more": {"order": ("sent", "checkpointing", "micro-batches", "stage")},
        "all ranks": {"whole": lambda sent, ranks: sent * ranks},
    })
def choose(model, ranks, card_bytes, batch, *, needs="peak_bytes", sends="in a step", stages=range(4), checkpointings=(False, True),
           order=("sent", "checkpointing", "micro-batches", "peak"), whole=lambda sent, ranks: sent):
    """The best of all settings that fit. order: what is compared first, then what decides between equals.

    only the states: A card has to have room for the peak of a step, and not for the model states alone.
    without accumulation: Stages 2 and 3 send again in every micro-batch: count the bytes of the whole step.
    always stage 3: Stage 3 holds the least and sends the most: take it only where nothing else fits.
    least memory: What fits, fits: among the settings with room on the card the one that sends the least is wanted.
    checkpointing for nothing: Checkpointing computes the forward twice: leave it off where as few bytes can be sent without it.
    never checkpointing: With checkpointing a larger micro-batch fits, and in stages 2 and 3 that sends fewer bytes.
    many micro-batches: Among settings that send as much, the one with the fewest micro-batches is wanted.
    holds more: Two stages send the same here: take the one that needs less at the peak.
    all ranks: `sent_bytes` is what one rank sends in a step.
    right: for eight machines, with the bytes to prove it.
    """
    fitting = []
    for stage, micro, checkpointing in itertools.product(stages, MICRO_BATCHES, checkpointings):
        if batch % (micro * ranks):
            continue
        config = config_of(stage, micro, checkpointing, ranks, batch)
        here = counts(config, CONFIGS[model], ranks)
        sent = here["sent_bytes"] if sends == "in a step" else counts(config, CONFIGS[model], ranks, accumulation=1)["sent_bytes"]
        if here[needs] <= card_bytes:
            ranked = {"sent": sent, "checkpointing": checkpointing, "micro-batches": batch // (micro * ranks),
                      "peak": here["peak_bytes"], "stage": stage}
            chosen = {"stage": stage, "micro_batch": micro, "checkpointing": checkpointing, "sent_bytes": whole(sent, ranks)}
            fitting.append(([ranked[name] for name in order], chosen))
    return min(fitting, key=lambda each: each[0])[1] if fitting else None
