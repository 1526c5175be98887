"""The check of 7.8: settings with which a small GPT-2 trains under a budget of bytes held and of bytes sent."""

import torch
from torch.utils.checkpoint import checkpoint

from .....errors import BadInput
from .....init.deferred import deferred_init
from .....measure.ledger import Ledger
from .....models.gpt2 import GPT, GPTConfig
from .....zero.extras import shard
from ....checks import MISUSED, Board, Trial, When, Wrong, exercise
from ....checks.catalogue import sentences
from ....checks.observers.stage_runs import WatchedComm

MODEL = GPTConfig(4, 2, 32, block_size=32, vocab_size=64)
ROWS, STEPS = 8, 2  # per rank and step; the second step is metered, when the optimizer's states are there
PEAK, SENT = 792_000, 550_000  # bytes per rank: held at the peak, and sent in a step
BEST = 766_900  # bytes held at the peak by the best settings that we know of
OF_SHARD = ("stage", "units", "bucket_size", "prefetch", "in_flight", "reshard_after_forward", "param_dtype")
OF_LOOP = ("micro_batches", "checkpointing")
_best: list[int] = []  # the least peak of this session


def train(settings: dict) -> dict:
    """Two steps of AdamW on this rank. Collective. Returns `losses` (one a step), and of the second step `peak` and
    `sent`, in bytes. Raises BadInput for settings that `shard` refuses.

    settings: those of `shard`, `micro_batches` (into so many the batch is cut) and `checkpointing` (of each block).
    """
    comm, options = WatchedComm(timeout=5), {key: value for key, value in settings.items() if key not in OF_LOOP}
    with deferred_init():
        model = GPT(MODEL)
    model, optimizer = shard(model, torch.optim.AdamW(model.parameters(), lr=0.01), comm=comm, **options)
    if settings.get("checkpointing", False):
        for block in model.h:
            block.forward = checkpointed(block.forward)
    seed = torch.Generator().manual_seed(100 + comm.rank)
    first, second = torch.randint(MODEL.vocab_size, (STEPS, ROWS, MODEL.block_size + 1), generator=seed)
    losses = [step(model, optimizer, first, settings.get("micro_batches", 1))]
    before = comm.sent.copy()
    with Ledger(model, optimizer) as ledger:
        losses.append(step(model, optimizer, second, settings.get("micro_batches", 1)))
    return {"losses": losses, "peak": ledger.peak, "sent": (comm.sent - before).total()}


def checkpointed(forward):
    return lambda x_BTC: checkpoint(forward, x_BTC, use_reentrant=False)


def step(model, optimizer, tokens: torch.Tensor, micro_batches: int) -> float:
    """One step on tokens (rows, T + 1), cut into micro-batches that count alike. Returns the mean of their losses."""
    total = 0.0
    for rows in tokens.chunk(micro_batches):
        loss = model(rows[:, :-1], rows[:, 1:]) / micro_batches
        loss.backward()
        total += loss.item()
        del loss
    optimizer.step()
    optimizer.zero_grad()
    return total


def under_budget_on_a_rank(answer):
    """What the settings lead to; over a budget also what is needed to say why."""
    settings = answer()
    if not isinstance(settings, dict):
        raise Wrong(f"it returned {type(settings).__name__}: return a dictionary of settings", MISUSED)
    if unknown := [repr(key) for key in settings if key not in OF_SHARD + OF_LOOP]:
        raise Wrong(f"{', '.join(unknown)} is no setting here: there are {', '.join(OF_SHARD + OF_LOOP)}", MISUSED)
    pieces, recompute = settings.get("micro_batches", 1), settings.get("checkpointing", False)
    if type(pieces) is not int or not 1 <= pieces <= ROWS or type(recompute) is not bool:
        raise Wrong(f"micro_batches is {pieces!r} and checkpointing {recompute!r}: the first must be a number of "
                    f"micro-batches from 1 to {ROWS}, and the second True or False", MISUSED)
    try:
        measured = train(settings)
    except BadInput as error:
        raise Wrong(f"`shard` refused the settings: {error}", MISUSED) from None
    why = {"stage": settings.get("stage", 3), "micro_batches": pieces, "checkpointing": recompute,
           "in_flight": settings.get("in_flight", 1)}
    return {"losses": measured["losses"], "sent": measured["sent"] > SENT and why,
            "peak": measured["peak"] > PEAK and why,
            "_sent": measured["sent"], "_peak": measured["peak"], "_sent_bytes": f"{measured['sent']:,}",
            "_peak_bytes": f"{measured['peak']:,}", "_most_sent": f"{SENT:,}", "_most_held": f"{PEAK:,}"}


def compared(seen: list[list[dict]]) -> str:
    """The measured numbers beside the budget, our best and the best of this session.

    Raises RuntimeError over a budget: only an answer that is over it like the reference comes here.
    """
    peak, sent = (max(of_rank[0][name] for of_rank in seen) for name in ("_peak", "_sent"))
    if peak > PEAK or sent > SENT:
        raise RuntimeError(f"with this version of torch the reference itself holds {peak:,} and sends {sent:,} bytes")
    said, before = sentences(compared), min(_best, default=None)
    _best.append(peak)
    measured = said["measured"].format(peak=peak, most=PEAK, best=BEST, sent=sent, most_sent=SENT)
    return measured if before is None else f"{measured} {said['before'].format(before=before)}"


def exceeds(what, test=bool):
    """A mistake that is seen in the settings of an answer that is over this budget."""
    return When(what, lambda got, want: got and test(got), suffices=True)


def most(name):
    """Of the ranks in the one trial."""
    return lambda seen: max(of_rank[0][name] for of_rank in seen[0])


ELEMENTS = 53_952  # of the model's parameters


@exercise(
    "7.8", "Beat this number", minutes=30, difficulty=3, timeout=30, tells=compared,
    board=(Board("bytes held at the peak", most("_peak"), 767_220, 16 * ELEMENTS // 2,
                 "weights, gradients and Adam's states are 16 bytes a parameter, which two ranks can at best share", ("peak",)),
           Board("bytes sent in a step", most("_sent"), 539_520, 4 * ELEMENTS,
                 "each gradient of a rank, 4 bytes, must in some form reach the other", ("sent",))),
    trials=[Trial(observe=under_budget_on_a_rank, worlds=(2,), close={"losses": 5e-5})],
    mistakes={
        "half precision": {"param_dtype": torch.bfloat16},
        "uneven": {"micro_batches": 3},
        "gathered each time": ({"stage": 3, "bucket_size": None},
                               exceeds("sent", lambda got: got["stage"] == 3 and got["micro_batches"] > 1)),
        "data parallel": ({"stage": 0}, exceeds("sent", lambda got: got["stage"] == 0)),
        "too many pieces": ({"micro_batches": 8}, exceeds("sent")),
        "activations kept": ({"checkpointing": False}, exceeds("peak", lambda got: not got["checkpointing"])),
        "too few pieces": ({"micro_batches": 2}, {"stage": 3, "micro_batches": 1},
                           exceeds("peak", lambda got: got["micro_batches"] < 4)),
        "whole gradient": ({"stage": 1}, exceeds("peak", lambda got: got["stage"] < 2)),
        "in flight": ({"in_flight": 1}, exceeds("peak", lambda got: got["in_flight"])),
        "wide buckets": ({"bucket_size": None}, exceeds("peak")),
    })
def settings(*, stage=2, micro_batches=4, checkpointing=True, bucket_size=4000, in_flight=0, **more):
    """Settings of `shard` and of the loop."""
    return {"stage": stage, "micro_batches": micro_batches, "checkpointing": checkpointing, "bucket_size": bucket_size,
            "in_flight": in_flight, **more}
