"""The checks of 10.1, bytes per rank in mixed precision, and 10.7, a configuration for a card."""

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
              "float": lambda params, stage, ranks, half, wide: tuple(
                  each / 1 for each in held_bytes(params, stage, ranks, half, wide))})
def held_bytes(params, stage, ranks, half, wide, *, master=lambda half: 4 * half, first=3,
               gradient=lambda half, wide: 2 if half and not wide else 4, shares=lambda stage, ranks, whole: 0):
    """Bytes of parameters, gradients and optimizer states.

    no master: You counted no master weights: beside Adam's two averages the optimizer has an fp32 copy of the
        parameters when these have 16 bits.
    master always: You counted master weights in fp32 too: there the parameters themselves are what is updated.
    master in half: You counted 2 bytes for a master weight: it is fp32.
    both gradients: You counted the gradient twice where it is added up in fp32: the one of 16 bits is freed as soon as
        it has been added.
    narrow: You left out `fp32_gradients`: they take 4 bytes each where they are added up in fp32.
    half in fp32: You counted gradients of 2 bytes in fp32 training: they have the dtype of the parameters there.
    whole master: You kept all master weights on every rank: they belong to the optimizer's states and are sharded with
        them.
    a stage late: You shard a stage too late: stage 1 shards the optimizer's states, stage 2 the gradients as well, and
        stage 3 the parameters as well.
    a stage early: You shard a stage too early: stage 1 shards the optimizer's states alone.
    nothing sharded: You divided nothing by the number of ranks.
    float: bytes are whole numbers: divide with //.
    right: at every stage, in fp32 and in half precision, with narrow gradients and wide ones.
    """
    whole = 4 * half * params
    sizes = (2 if half else 4) * params, gradient(half, wide) * params, (8 + master(half)) * params
    extra = shares(stage, ranks, whole)
    return tuple((size if kind + stage < first else size // ranks) + (extra - extra // ranks) * (kind == 2)
                 for kind, size in zip(KINDS, sizes, strict=True))


# 10.7 ---------------------------------------------------------------------------------------------------------------

GIB = 2**30
MACHINES = [((7, 5), 15 * GIB, 500_000_000, 2), ((7, 5), 15 * GIB, 1_500_000_000, 2),
            ((7, 0), 32 * GIB, 1_500_000_000, 4), ((8, 0), 80 * GIB, 1_500_000_000, 1), ((8, 0), 40 * GIB, 3_000_000_000, 4),
            ((8, 6), 24 * GIB, 1_500_000_000, 2), ((8, 9), 24 * GIB, 7_000_000_000, 8),
            ((9, 0), 80 * GIB, 7_000_000_000, 8),
            ((8, 6), 24 * GIB, 1_900_000_000, 2), ((8, 0), 40 * GIB, 6_000_000_000, 4),
            ((9, 0), 80 * GIB, 70_000_000_000, 16), ((8, 0), 125 * 10**9, 6_250_000_000, 1),
            ((7, 5), 15 * GIB, 200_000_000, 1), ((10, 0), 180 * GIB, 7_000_000_000, 8)]


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
              "all memory": {"share": 1.0},
              "always 3": {"stages": (3,)},
              "always one": {"no_room": 3}})
def choose_precision(capability, memory, params, ranks, *, least=(8, 0), scale={"loss_scale": 0}, of_bf16={},
                     parameter=2, gradient=2, optimizer=12, share=0.8, stages=(0, 1, 2, 3), no_room=None,
                     newer=lambda capability, least: capability >= least, fits=lambda held, room: held <= room):
    """The part of a ds_config, or None.

    emulated: You gave bf16 to a card that only emulates it: a T4 has capability 7.5, and bf16 needs 8.0.
    always bf16: You gave bf16 to every card: below capability 8.0 there is none.
    always fp16: You gave fp16 to every card: from capability 8.0 on there is bf16, whose range needs no loss scale.
    after ampere: You refused bf16 to an A100: its capability is exactly 8.0, and it has bf16.
    hopper: You gave bf16 from capability 9.0 on: cards of 8.0, 8.6 and 8.9 have it too.
    static scale: You fixed the loss scale: 0 stands for the dynamic one, which finds its value by itself.
    scale left out: You left `loss_scale` out: the exercise wants it written down, as 0 for a dynamic scale.
    scale for bf16: You gave a loss scale to bf16: it has the range of fp32 and needs none.
    no masters: You counted 8 bytes of optimizer states per parameter: with the master weights it is 12.
    fp32 states: You counted the bytes of fp32 training: 2 for a parameter, 2 for its gradient and 12 for the optimizer
        are right here, and the stages above 0 shard them differently.
    as text: You compared the capability as text or as one number: 10.0 is above 8.0. Compare the pairs themselves.
    strictly less: What fills exactly 80 % fits: at most is wanted, and not less.
    all memory: You filled the whole card with model states: a fifth must remain for activations and the rest.
    always 3: You took stage 3 always: the lowest stage that fits is wanted, because it sends less or is simpler.
    always one: You chose stage 3 where not even that fits: None is right there.
    right: for fourteen machines, from a T4 to sixteen H100.
    """
    section = {"bf16": {"enabled": True, **of_bf16}} if newer(capability, least) else {"fp16": {"enabled": True, **scale}}
    for stage in stages:
        held = [each if kind + stage < 3 else each / ranks for kind, each in
                zip(KINDS, (parameter, gradient, optimizer), strict=True)]
        if fits(params * sum(held), share * memory):
            return {**section, "zero_optimization": {"stage": stage}}
    return None if no_room is None else {**section, "zero_optimization": {"stage": no_room}}
