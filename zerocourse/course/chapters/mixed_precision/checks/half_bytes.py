"""The checks of 10.1, bytes per rank in mixed precision, and 10.7, a configuration for a card."""

import operator

from ....checks import FORMULAS, exercise

# 10.1 ---------------------------------------------------------------------------------------------------------------

KINDS = (0, 1, 2)  # parameters, gradients, optimizer states: stage s shards the last s of them
BYTES_CASES = [(1000, stage, ranks, half, wide) for ranks in (1, 2, 4) for stage in range(4)
               for half, wide in ((False, False), (True, False), (True, True), (False, True))]


@exercise("10.1", "Bytes per parameter", minutes=10, difficulty=1, replaces=FORMULAS,
          cases=BYTES_CASES,
          mistakes={
              "no master": {"master": lambda half: 0},
              "master always": {"master": lambda half: 4},
              "master in half": {"master": lambda half: 2 * half},
              "both gradients": {"gradient": lambda half, wide: 4 if not half else 2 + 4 * wide},
              "narrow": {"gradient": lambda half, wide: 2 if half else 4},
              "half in fp32": {"gradient": lambda half, wide: 4 if wide else 2},
              "whole master": {"shares": lambda stage, ranks, whole: whole if stage else 0},
              "a stage late": {"first": 4},
              "a stage early": {"first": 2},
              "nothing sharded": {"first": 9},
              "one kind": {"sharded": lambda kind, stage, first: kind + stage == first},
              "gradients first": {"sharded": lambda kind, stage, first: stage >= (3, 1, 2)[kind]},
              "all at once": {"sharded": lambda kind, stage, first: stage > 0},
              "float": lambda params, stage, ranks, half, wide: tuple(
                  each / 1 for each in held_bytes(params, stage, ranks, half, wide))})
def held_bytes(params, stage, ranks, half, wide, *, master=lambda half: 4 * half, first=3,
               gradient=lambda half, wide: 2 if half and not wide else 4, shares=lambda stage, ranks, whole: 0,
               sharded=lambda kind, stage, first: kind + stage >= first):
    """Bytes of parameters, gradients and optimizer states."""
    whole = 4 * half * params
    sizes = (2 if half else 4) * params, gradient(half, wide) * params, (8 + master(half)) * params
    extra = shares(stage, ranks, whole)
    return tuple((size // ranks if sharded(kind, stage, first) else size) + (extra - extra // ranks) * (kind == 2)
                 for kind, size in zip(KINDS, sizes, strict=True))


# 10.7 ---------------------------------------------------------------------------------------------------------------

GIB = 2**30
MACHINES = [((7, 5), 15 * GIB, 500_000_000, 2), ((7, 5), 15 * GIB, 1_500_000_000, 2),
            ((7, 0), 32 * GIB, 1_500_000_000, 4), ((8, 0), 80 * GIB, 1_500_000_000, 1), ((8, 0), 40 * GIB, 3_000_000_000, 4),
            ((8, 6), 24 * GIB, 1_500_000_000, 2), ((8, 9), 24 * GIB, 7_000_000_000, 8),
            ((9, 0), 80 * GIB, 7_000_000_000, 8),
            ((8, 6), 24 * GIB, 1_900_000_000, 2), ((8, 0), 40 * GIB, 6_000_000_000, 4),
            ((9, 0), 80 * GIB, 70_000_000_000, 16), ((8, 0), 125 * 10**9, 6_250_000_000, 1),
            ((7, 5), 15 * GIB, 200_000_000, 1), ((8, 0), 40 * GIB, 5_000_000_000, 4), ((10, 0), 180 * GIB, 7_000_000_000, 8),
            ((9, 0), 80 * 10**9, 15_000_000_000, 16), ((9, 0), 80 * 10**9, 12_000_000_000, 8)]


@exercise("10.7", "A precision for a card", minutes=20, difficulty=2, replaces=FORMULAS,
          cases=MACHINES,
          mistakes={
              "emulated": {"least": (7, 5)},
              "always bf16": {"least": (0, 0)},
              "always fp16": {"least": (99, 0)},
              "after ampere": {"least": (8, 1)},
              "hopper": {"least": (9, 0)},
              "as text": {"newer": lambda capability, least: ".".join(map(str, capability)) >= "8.0"},
              "strictly less": {"fits": lambda held, room: held < room},
              "static scale": ({"scale": {"loss_scale": 65536}}, {"scale": {"loss_scale": 1}}),
              "scale left out": {"scale": {}},
              "scale for bf16": {"of_bf16": {"loss_scale": 0}},
              "no masters": {"optimizer": 8},
              "fp32 states": {"parameter": 4, "gradient": 4, "optimizer": 8},
              "rounded down": {"shared": operator.floordiv},
              "all memory": {"share": 1.0},
              "all cards": {"cards": lambda ranks: ranks},
              "gradients early": {"sharded": (0, 2, 3, 3)},
              "parameters early": {"sharded": (0, 1, 3, 3)},
              "all at once": {"sharded": (0, 3, 3, 3)},
              "always 3": {"stages": (3,)},
              "from 1 on": {"stages": (1, 2, 3)},
              "always one": {"no_room": 3}})
def choose_precision(capability, memory, params, ranks, *, least=(8, 0), scale={"loss_scale": 0}, of_bf16={},
                     parameter=2, gradient=2, optimizer=12, share=0.8, stages=(0, 1, 2, 3), no_room=None, sharded=(0, 1, 2, 3),
                     newer=lambda capability, least: capability >= least, fits=lambda held, room: held <= room,
                     shared=operator.truediv, cards=lambda ranks: 1):
    """The part of a ds_config, or None."""
    section = {"bf16": {"enabled": True, **of_bf16}} if newer(capability, least) else {"fp16": {"enabled": True, **scale}}
    for stage in stages:
        held = [each if kind + sharded[stage] < 3 else shared(each, ranks) for kind, each in
                zip(KINDS, (parameter, gradient, optimizer), strict=True)]
        if fits(params * sum(held), share * memory * cards(ranks)):
            return {**section, "zero_optimization": {"stage": stage}}
    return None if no_room is None else {**section, "zero_optimization": {"stage": no_room}}
