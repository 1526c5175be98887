"""What holds of every run that is right. Each function goes red, with a sentence, for some bugs of the museum.

They get what every rank saw (`Played`), what the unsharded model saw on the data of all ranks, and the scene. A NaN is
never near anything.
"""

from collections.abc import Sequence
from itertools import pairwise

from ...formulas.states import CONVENTIONS, Convention, model_states
from .scene import Played, Scene

NEAR = 1e-4  # relative: ranks and one process add up in another order
CONVENTION = {"sgd": CONVENTIONS["fp32-sgd"], "adamw": CONVENTIONS["fp32"], "plain adamw": CONVENTIONS["fp32"]}
HALF_SGD = Convention("bf16-sgd", 2, 2, 4)  # with fp32 master weights


def gradient_is_the_unsharded_one(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """The norm of each step's gradient, on every rank."""
    for rank, played in enumerate(ranks):
        for step, (norm, expected) in enumerate(zip(played.norms, whole.norms, strict=True)):
            assert abs(norm / expected - 1) <= NEAR, \
                f"rank {rank}, step {step}: the gradient's norm is {norm / expected:.2f} times the unsharded one"


def losses_are_the_unsharded_ones(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """The ranks' mean loss at each step."""
    for step, expected in enumerate(whole.losses):
        loss = sum(played.losses[step] for played in ranks) / len(ranks)
        assert abs(loss / expected - 1) <= NEAR, f"step {step}: the loss is {loss:.4f}, unsharded {expected:.4f}"


def replicas_agree(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """All ranks have the same parameters, at every step (below stage 3)."""
    for step, sums in enumerate(zip(*(played.sums for played in ranks), strict=True)):
        said = ", ".join(f"{total:.3f}" for total in sums)
        assert len(set(sums)) == 1, f"after {step} steps the sums over the ranks' parameters are {said}"


def bytes_are_the_formulas(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """Parameters, gradients and optimizer states just before the last step; no gradients after it."""
    convention = HALF_SGD if scene.half else CONVENTION[scene.optimizer]
    expected = model_states(whole.params, scene.stage, len(ranks), convention)
    for rank, played in enumerate(ranks):
        for kind in ("parameters", "gradients", "optimizer"):
            held, right = played.bytes_before_step[f"{kind}_bytes"], getattr(expected, f"{kind}_bytes")
            assert held == right, f"rank {rank} holds {held:,} bytes of kind {kind} before the step, not {right:,}"
        left = played.bytes_after_step["gradients_bytes"]
        assert not left, f"rank {rank} holds {left:,} bytes of gradients after zero_grad()"


def gathers_run_ahead(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """While a block computes its forward, the next one is being gathered (stage 3)."""
    for rank, played in enumerate(ranks):
        gathers = [event for event in played.events if event["verb"] == "all_gather"]
        computes = [event for event in played.events if event["verb"] == "forward" and event["unit"] != "root"]
        for now, later in pairwise(computes):
            of_later = [gather for gather in gathers if gather["unit"] == later["unit"]]
            assert any(gather["start"] < now["end"] < gather["end"] for gather in of_later), \
                f"rank {rank}: {later['unit']} is not being gathered when the forward of {now['unit']} ends"


def steps_are_counted_once(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """The optimizer's own step counts."""
    for rank, played in enumerate(ranks):
        least, most = played.step_counts
        assert least == most == scene.steps, \
            f"rank {rank}: after {scene.steps} steps the step counts go from {least:g} to {most:g}"


def all_is_finite(ranks: Sequence[Played], whole: Played, scene: Scene) -> None:
    """No output and no gradient is NaN or infinite, on any rank."""
    found = {rank: played.not_finite for rank, played in enumerate(ranks) if played.not_finite}
    if found:
        rank, (step, what, name) = min(found.items(), key=lambda item: item[1][0])
        raise AssertionError(f"the first that is not finite is the {what} of {name}, at step {step}, on rank {rank}")
