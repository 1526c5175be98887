"""A candidate evaluated by formula: a fraction of a millisecond, and within some percent of its simulation.

On a mesh a rank is like one that trains its part of the model: fewer layers, of which it has a share. What the formulas
assume besides: the collectives of tensor parallelism hide behind nothing; a pipeline's transfers hide behind the other
micro-batches, except while it fills and drains; gathers and reductions of the data axis hide as they do without a mesh. Where ranks
have different experts, all are equally busy, and tokens that travel hide behind nothing.
"""

from ..formulas.models.mixture_shape import TRIPS
from ..formulas.peak import decoder_peaks
from ..formulas.shares import share_of
from ..formulas.states import ModelStates, model_states
from ..formulas.time.step_time import ADAM_TRAFFIC, PUBLISHING_TRAFFIC, state_traffic, step_time
from ..formulas.transformer import block_flops
from ..formulas.volumes import sent_bytes
from ..formulas.what_fits import DEVICE, DISK, HOST, PLACES, Needs, needs, on_device
from ..layout.mesh import INSIDE
from .candidate import COMPUTED, AxisTraffic, Candidate, Evaluation
from .mesh_parts import RankPart, bubble_seconds, end_parts, links
from .question import Question

KINDS = ("parameters", "gradients", "optimizer", "the rest, at the peak")


def computed(question: Question, candidate: Candidate, margin: float = 0.0) -> Evaluation:
    """margin: the share by which the peak may exceed the card's memory, because a simulation has the last word.

    Of a pipeline's two ends, memory is that of the one which needs more, and time that of the one which takes longer.
    """
    parts = end_parts(question.model, candidate)
    part, need = heavier_end(question, candidate)
    held = {DEVICE: need.device_bytes, HOST: need.host_bytes, DISK: need.disk_bytes}
    compute, exposed, bubble, traffic = max((_seconds(question, candidate, each, need) for each in parts),
                                            key=lambda times: times[0] + times[1])
    tokens = candidate.samples * question.seq
    budgets = question.budgets | {DEVICE: int(question.budgets[DEVICE] * (1 + margin))}
    missing = {place: held[place] - question.budgets[place] for place in PLACES if held[place] > budgets[place]}
    return Evaluation(candidate, COMPUTED, kinds_at_peak(held_by(part, candidate), candidate, need.device_bytes), held,
                      sent_by_link(traffic) | {HOST: need.link_bytes, DISK: need.io_bytes}, compute, exposed, tokens,
                      question.cost(candidate.ranks, tokens, compute + exposed), missing,
                      traffic if candidate.replica > 1 or candidate.experts_over > 1 else (), bubble)


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


def _seconds(question: Question, candidate: Candidate, part: RankPart,
             need: Needs) -> tuple[float, float, float, tuple[AxisTraffic, ...]]:
    """(computes, waits, of that the bubble, what each axis sends) of an optimizer step. What is offloaded moves after
    the backward, and nothing hides."""
    model, machine, network, rates = question.model, question.cluster.machine, question.cluster.network, question.rates
    element, data, samples = candidate.convention.parameter, candidate.data, candidate.micro_batch
    t, p, micro_batches = candidate.tensor, candidate.pipeline, candidate.accumulation
    over = candidate.experts_over
    tokens, token = samples * question.seq, model.token(candidate.convention.parameter, candidate.recompute, over)

    def layer(passes: int, used: int = model.used) -> float:
        flops = block_flops(used, model.width, question.seq, samples, passes)
        read = element * (used / t if not part.experts else part.block + part.experts)
        return machine.seconds(flops / t, passes * read) + machine.seconds(0, tokens * moved * passes / t)

    moved = token.moved_layer / (4 if candidate.recompute else 3)
    # A pass gathers a layer's input and scatters its output twice, around attention and around the feed-forward part.
    # Recomputation ends when all that the backward needs is there, which is before a Llama's last scatter. The embedding's
    # sum counts as two, and its cut and the head's input send in the backward, too.
    slice_bytes = tokens * model.width * element // t
    talk = network.every(1).seconds((t - 1) * slice_bytes, t) if t > 1 else 0.0
    again = candidate.recompute * (3 if model.family == "llama" else 4)
    at_the_ends = 3 * part.first + 2 * part.last
    talks = micro_batches * (part.layers * (8 + again) + at_the_ends)
    forward = layer(1) + 4 * talk
    backward = layer(2) + (4 + again) * talk + candidate.recompute * layer(1, model.used - max(model.k, 1) * model.inner * model.width)
    if part.experts:
        backward += machine.seconds(0, 4 * candidate.convention.gradient * part.experts)  # to one gradient, and into the buffer
    head = (machine.seconds(6 * tokens * model.vocabulary * model.width / t, 0)
            + machine.seconds(0, tokens * token.moved_loss / t))
    trips = micro_batches * part.layers * (TRIPS + candidate.recompute * TRIPS // 2)
    trip_bytes = model.k * tokens * model.width * element * (over - 1) // over
    travel = trips * network.to_each_seconds(trip_bytes, over) if over > 1 else 0.0
    experts = part.layers * part.experts
    owned = share_of(part.dense, data) + (share_of(experts, candidate.same_experts) if experts else 0)
    states = machine.seconds(0, state_traffic(candidate.stage, element, part.params, owned, micro_batches))
    publishing = machine.seconds(0, PUBLISHING_TRAFFIC[element] * owned)
    rest, away = micro_batches * (part.last * head + at_the_ends * talk) + states, 0.0
    if candidate.optimizer != DEVICE:
        rest -= machine.seconds(0, ADAM_TRAFFIC * (owned if candidate.stage else part.params))
        away = need.link_bytes / rates.link + ADAM_TRAFFIC * owned / rates.host
        away += need.io_bytes / rates.disk if need.io_bytes else 0

    def seconds(numel: int, among: int = data, stride: int = t) -> float:
        if among == 1 or not numel:
            return 0.0
        return network.every(stride).seconds((among - 1) * share_of(numel, among) * element, among)

    of_unit = (seconds(part.block) + seconds(part.experts, candidate.same_experts, over) if over > 1
               else seconds(part.block + part.experts))  # experts that ranks have apart lie in a buffer of their own
    time = step_time(candidate.stage, micro_batches, part.layers, forward, backward, rest, publishing,
                     of_unit, seconds(part.before) + seconds(part.after))
    bubble, transfers, hop_bytes = 0.0, 0.0, 0
    if p > 1:
        even, more = divmod(model.layers, p)
        slots = [(even + (rank < more)) * (forward + backward) + (rank == p - 1) * head for rank in range(p)]
        mine = slots[0] if part.first else slots[-1]
        bubble = micro_batches * (max(slots) - mine) + bubble_seconds(candidate, slots)
        along = network.every(t * data)
        inside = along.nodes(p) == 1
        transfers = 2 * (p - 1) * (slice_bytes / along.rate(p) + (along.latency if inside else along.latency_between))
        tied = element * share_of(model.vocabulary * model.width // t, data) if model.tied and (part.first or part.last) else 0
        hop_bytes = (2 * candidate.chunks - (p == 2)) * micro_batches * slice_bytes + tied
    where = links(candidate, network.per_node)
    wire = sent_bytes(part.dense, candidate.stage, data, micro_batches, convention=candidate.convention)
    if experts:
        wire += sent_bytes(experts, candidate.stage, candidate.same_experts, micro_batches, convention=candidate.convention)
    traffic = (AxisTraffic("tensor", where["tensor"], talks * (t - 1) * slice_bytes, talks * talk),
               AxisTraffic("pipeline", where["pipeline"], hop_bytes, transfers),
               AxisTraffic("expert", where["expert"], trips * trip_bytes, travel),
               AxisTraffic("data", where["data"], wire, time.exposed))
    waits = time.exposed + talks * talk + transfers + travel + bubble + away
    return time.compute - talks * talk, waits, bubble, tuple(each for each in traffic if each.axis == "data" or each.nbytes)
