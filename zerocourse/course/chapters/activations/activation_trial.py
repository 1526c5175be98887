"""What the blocks of a GPT-2 keep for the backward, tensor by tensor and byte by byte. For chapter 13."""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from ....activations import AllocationLog, Partitioned, checkpoint_blocks, keeping, saving
from ....activations.arena import Allocation
from ....activations.keeping import Packing, storage_of
from ....comm import Comm
from ....errors import BadInput
from ....measure.ledger import Ledger
from ....models.gpt2 import GPT, GPTConfig
from ....zero.extras import shard
from ...museum.breaks import Break, drop
from ...museum.bug import Bug
from ...trials.watched_training import phases

SHAPE = GPTConfig(4, 4, 64, block_size=128, vocab_size=256)
SAMPLES = 2
WAYS = ("nothing", "selective", "full")
"""What is computed again: nothing, all but the matrix products, or all of a block but its input."""

OTHER_MASKS = Bug(
    "other_masks", "a block that is computed again draws other dropout masks",
    symptom="None: the losses of a step are right to the last bit.",
    instrument="gradients, bitwise against those without checkpointing", source="common",
    test="activations/test_activations.py::test_dropout_draws_the_same_masks_again",
    changes=(Break("activations.checkpointing:checkpointed", "checkpoint().use_reentrant", "{old}, preserve_rng_state=False"),))

NOT_GATHERED_AGAIN = Bug(
    "not_gathered_again", "stage 3 does not gather a block's parameters before it is computed again",
    symptom="NaN in the gradients, or an error about a parameter of no elements.",
    instrument="gradients, bitwise against those without checkpointing", source="huggingface/transformers#47254",
    test="activations/test_activations.py::test_stage_3_gathers_a_block_before_it_computes_again",
    changes=(Break("zero.stage3:Stage3.pre_backward", "for", drop),
             Break("zero.extras.hidden:Hiding.gather_for_use", "if.test", "not stage.root.forward_depth")))


def model_of(way: str = "nothing", shape: GPTConfig = SHAPE, **changes) -> GPT:
    """A GPT-2, always with the same weights, that computes again what `way` says. changes: fields of its config."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(**vars(shape) | changes))
    if way != "nothing":
        checkpoint_blocks(model, **({"context": saving()} if way == "selective" else {}))
    return model


def tokens_of(shape: GPTConfig = SHAPE, samples: int = SAMPLES, seed: int = 0) -> Tensor:
    """(samples, block_size), int64."""
    return torch.randint(shape.vocab_size, (samples, shape.block_size), generator=torch.Generator().manual_seed(seed))


# -- tensor by tensor -------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class SavedTensor:
    """A tensor that autograd keeps.

    by: the operation whose backward needs it, in torch's words, as "Addmm".   role: what it is to it, as "mat1".
    nbytes: of its storage.
    """

    by: str
    role: str
    shape: tuple[int, ...]
    nbytes: int


def saved_by(output: Tensor, model: nn.Module) -> list[SavedTensor]:
    """What the graph behind `output` keeps, in the order of the forward, each storage once and no parameter."""
    nodes, coming = [], [output.grad_fn]
    while coming:
        node = coming.pop()
        if node is not None and node not in nodes:
            nodes.append(node)
            coming += [before for before, _ in node.next_functions]
    seen, found = {storage_of(param) for param in model.parameters()}, []
    for node in reversed(nodes):
        for name in sorted(name for name in dir(node) if name.startswith("_saved_")):
            tensor = getattr(node, name)
            if isinstance(tensor, Tensor) and storage_of(tensor) not in seen:
                seen.add(storage_of(tensor))
                found.append(SavedTensor(node.name().removesuffix("Backward0"), name.removeprefix("_saved_"),
                                         tuple(tensor.shape), tensor.untyped_storage().nbytes()))
    return found


# -- byte by byte -----------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Kept:
    """each: bytes that every block keeps on the device.   gradient: (numel,), of all blocks, one after the other."""

    each: list[int]
    loss: float
    gradient: Tensor


def through_blocks(model: GPT, packing: Packing | None = None, samples: int = SAMPLES, seed: int = 7) -> Kept:
    """A forward and a backward of the blocks alone, on an input that is not counted as any block's."""
    config = model.config
    x_BTC = torch.randn(samples, config.block_size, config.n_embd, generator=torch.Generator().manual_seed(seed))
    torch.manual_seed(1)  # of the dropout masks
    x_BTC.requires_grad_()
    with Ledger(model) as ledger:
        ledger.track(x_BTC)
        held = [ledger.now().rest]
        with keeping(model, packing) if packing else nullcontext():
            for block in model.h:
                x_BTC = block(x_BTC)
                held.append(ledger.now().rest)
        loss = x_BTC.square().mean()
        loss.backward()
    return Kept([after - before for before, after in pairwise(held)], loss.item(),
                torch.cat([param.grad.flatten() for param in model.h.parameters()]))


def flops(model: GPT) -> int:
    """Of a forward and its backward, in the matrix products."""
    tokens_BT = tokens_of(model.config)
    with FlopCounterMode(display=False) as counter:
        model(tokens_BT, tokens_BT).backward()
    return counter.get_total_flops()


def peak_in_segments(model: GPT, starts: Sequence[int], samples: int) -> int:
    """The most bytes beside the model's while its blocks run, with checkpoints before those in `starts`."""
    config = model.config
    x_BTC = torch.zeros(samples, config.block_size, config.n_embd, requires_grad=True)

    def segment(x: Tensor, blocks: Iterable[nn.Module]) -> Tensor:
        for block in blocks:
            x = block(x)
        return x

    model.zero_grad()
    with Ledger(model) as ledger:
        ledger.track(x_BTC)
        before = ledger.now().total - x_BTC.nbytes
        for start, stop in zip(starts, [*starts[1:], len(model.h)], strict=True):
            x_BTC = checkpoint(segment, x_BTC, model.h[start:stop], use_reentrant=False)
        x_BTC.backward(torch.ones_like(x_BTC))
    return ledger.peak - before


# -- a step, allocation by allocation ---------------------------------------------------------------------------------

@dataclass(frozen=True)
class Step:
    """A forward and a backward, as what was allocated and freed. forward: how many events there were when it ended."""

    events: list[Allocation]
    forward: int

    def curve(self) -> tuple[list[int], list[int]]:
        """Bytes of gradients, and of all else that the step has allocated, after each event."""
        at_end = {event.key for event in self.events} - {event.key for event in self.events if not event.nbytes}
        alive, gradients, others = {}, [], []
        for event in self.events:
            alive[event.key] = event.nbytes
            gradients.append(sum(nbytes for key, nbytes in alive.items() if key in at_end))
            others.append(sum(alive.values()) - gradients[-1])
        return gradients, others


def recorded(way: str = "nothing", shape: GPTConfig = SHAPE, samples: int = SAMPLES) -> Step:
    model, tokens_BT = model_of(way, shape), tokens_of(shape, samples)
    with AllocationLog(model).track(tokens_BT) as log:  # the tokens were there before, and are none of the step's
        loss = model(tokens_BT, tokens_BT)
        log.mark()
        forward = len(log.events)
        loss.backward()
        del loss
        return Step(log.events, forward)


# -- on ranks ---------------------------------------------------------------------------------------------------------

def divided(same_data: bool, samples: int = SAMPLES) -> dict:
    """Checkpoints whole, and divided among all ranks, which compute the same or each something else. Collective.

    whole, slices: bytes that each block keeps.   sent: elements, in all-gathers.   error: of the gradient, relative.
    """
    comm = Comm()
    seed = 7 if same_data else comm.rank
    whole = through_blocks(model_of("full"), samples=samples, seed=seed)
    slices = through_blocks(model_of("full"), Partitioned(comm), samples, seed)
    events = [event for event in comm.issued if event[0] == "all_gather"]
    return {"whole": whole.each, "slices": slices.each, "all-gathers": len(events), "sent": comm.elements["all_gather"],
            "same": torch.equal(whole.gradient, slices.gradient),
            "error": ((whole.gradient - slices.gradient).norm() / whole.gradient.norm()).item()}


def at_stage_3(bug: Bug | None = None, steps: int = 2) -> dict:
    """A training in which blocks are computed again, with a bug or without: its losses, and the error that ended it.
    Collective."""
    losses, error = [], None
    with bug.planted() if bug else nullcontext():
        model = model_of("full")
        model, optimizer = shard(model, torch.optim.SGD(model.parameters(), lr=0.01), stage=3)
        try:
            for step in range(steps):
                list(phases(model, optimizer, [tokens_of(model.config, seed=step)], losses, lambda model, tokens_BT: model(tokens_BT, tokens_BT)))
        except BadInput as caught:
            error = str(caught)
    return {"losses": losses, "error": error}
