"""A candidate evaluated by formula: a fraction of a millisecond, and within some percent of its simulation.

On a mesh a rank is like one that trains its part of the model: fewer layers, of which it has a share. What the formulas
assume besides: the collectives of tensor parallelism hide behind nothing; a pipeline's transfers hide behind the other
micro-batches, except while it fills and drains; gathers and reductions of the data axis hide as they do without a mesh. Where ranks
have different experts, all are equally busy, and tokens that travel hide behind nothing.
"""

from ..formulas.peak import decoder_peaks
from ..formulas.states import ModelStates, model_states
from ..formulas.what_fits import DEVICE, DISK, HOST, PLACES, Needs, needs, on_device
from ..layout.mesh import INSIDE
from .candidate import COMPUTED, AxisTraffic, Candidate, Evaluation
from .mesh_parts import RankPart, end_parts
from .question import Question
from .step_seconds import StepSeconds

KINDS = ("parameters", "gradients", "optimizer", "the rest, at the peak")


def computed(question: Question, candidate: Candidate, margin: float = 0.0) -> Evaluation:
    """margin: the share by which the peak may exceed the card's memory, because a simulation has the last word.

    Of a pipeline's two ends, memory is that of the one which needs more, and time that of the one which takes longer.
    """
    parts = end_parts(question.model, candidate)
    part, need = heavier_end(question, candidate)
    held = {DEVICE: need.device_bytes, HOST: need.host_bytes, DISK: need.disk_bytes}
    step = max((StepSeconds(question, candidate, each, need) for each in parts), key=lambda each: each.compute + each.waits)
    tokens = candidate.samples * question.seq
    budgets = question.budgets | {DEVICE: int(question.budgets[DEVICE] * (1 + margin))}
    missing = {place: held[place] - question.budgets[place] for place in PLACES if held[place] > budgets[place]}
    return Evaluation(candidate, COMPUTED, kinds_at_peak(held_by(part, candidate), candidate, need.device_bytes), held,
                      sent_by_link(step.traffic) | {HOST: need.link_bytes, DISK: need.io_bytes}, step.compute, step.waits, tokens,
                      question.cost(candidate.ranks, tokens, step.compute + step.waits), missing,
                      step.traffic if candidate.replica > 1 or candidate.experts_over > 1 else (), step.bubble)


def heavier_end(question: Question, candidate: Candidate) -> tuple[RankPart, Needs]:
    """The end of the pipeline that needs more memory, and what it needs."""
    parts = end_parts(question.model, candidate)
    return max(((part, _needs(question, candidate, part)) for part in parts), key=lambda each: each[1].device_bytes)


def sent_by_link(traffic: tuple[AxisTraffic, ...]) -> dict[str, int]:
    """What leaves a node goes by its slowest link, so a ring that does so once counts as between nodes."""
    sent: dict[str, int] = {}
    for each in traffic:
        where = "inside" if each.link == INSIDE else "between"
        sent[where] = sent.get(where, 0) + each.nbytes
    return sent


def held_by(part: RankPart, candidate: Candidate) -> ModelStates:
    """Model states of a rank that has this part of the model."""
    held = model_states(part.dense, candidate.stage, candidate.data, candidate.convention)
    experts = part.layers * part.experts
    return held + model_states(experts, candidate.stage, candidate.same_experts, candidate.convention) if experts else held


def kinds_at_peak(held: ModelStates, candidate: Candidate, peak: int) -> dict[str, int]:
    """Model states that stay on the device as the stage divides them, and what the peak adds to them."""
    stay = (held.parameters_bytes * (candidate.parameters == DEVICE),
            held.gradients_bytes * (candidate.optimizer == DEVICE),
            held.optimizer_bytes * (candidate.optimizer == DEVICE))
    left, kinds = peak, {}
    # Gradients last, because they may be gone at the peak.
    for kind, nbytes in zip(KINDS, (stay[0], stay[2], stay[1]), strict=False):
        name = {"gradients": "optimizer", "optimizer": "gradients"}.get(kind, kind)
        kinds[name] = min(left, nbytes)
        left -= kinds[name]
    return {name: kinds[name] for name in KINDS[:3]} | {KINDS[3]: left}


def _needs(question: Question, candidate: Candidate, part: RankPart) -> Needs:
    """With the peak of a step on the device. Tokens of a sequence are divided by the tensor axis, and logits too."""
    model, data, offloaded, t = question.model, candidate.data, candidate.optimizer != DEVICE, candidate.tensor
    convention = candidate.convention
    token, tokens = model.token(convention.parameter, candidate.recompute, candidate.experts_over), candidate.micro_batch * question.seq
    # Sequence parallelism gathers the inputs of attention and of the feed-forward part, which keep them whole.
    layer = token.layer + 2 * (t - 1) * token.input
    kept = token.input if candidate.recompute else layer
    embedding = part.first * model.vocabulary * model.width // t
    stacked = 2 * convention.gradient * part.experts  # gradients of single experts, which become one of all when activations are gone
    in_blocks, at_the_end = decoder_peaks(
        (part.before, part.after), part.block, part.layers, candidate.stage, data, on_device(convention, offloaded), kept * tokens // t,
        max((layer + token.passing - kept + (t - 1) * token.input) * tokens // t, stacked), part.last * token.loss * tokens // t,
        convention.gradient * embedding * (3 if model.tied and part.last else 1), candidate.accumulation > 1, offloaded,
        candidate.parameters != DEVICE, part.experts, candidate.same_experts)  # a tied embedding's gradient is there twice, and their sum
    others = int((part.in_flight - 1) * part.layers * kept * tokens) // t
    return needs(candidate.arrangement, part.params, data, convention, candidate.accumulation,
                 device_peak=max(in_blocks + others, at_the_end), largest_unit=max(part.block + part.experts, part.before + part.after))
