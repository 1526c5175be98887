"""A candidate evaluated by formula: a fraction of a millisecond, and within some percent of its simulation."""

from ..formulas.peak import states_peak
from ..formulas.shares import padded_elements, share_of
from ..formulas.states import model_states
from ..formulas.step_time import ADAM_TRAFFIC, PUBLISHING_TRAFFIC, state_traffic, step_time
from ..formulas.transformer import block_flops
from ..formulas.volumes import sent_bytes
from ..formulas.what_fits import DEVICE, DISK, HOST, PLACES, needs, on_device
from .candidate import COMPUTED, Candidate, Evaluation
from .question import Question

KINDS = ("parameters", "gradients", "optimizer", "the rest, at the peak")


def computed(question: Question, candidate: Candidate, margin: float = 0.0) -> Evaluation:
    """margin: the share by which the peak may exceed the card's memory, because a simulation has the last word."""
    device, host, disk, link, io = _needs(question, candidate)
    held = {DEVICE: device, HOST: host, DISK: disk}
    compute, exposed = _seconds(question, candidate, link, io)
    tokens = candidate.samples * question.seq
    budgets = question.budgets | {DEVICE: int(question.budgets[DEVICE] * (1 + margin))}
    missing = {place: held[place] - question.budgets[place] for place in PLACES if held[place] > budgets[place]}
    params = question.model.params
    wire = sent_bytes(params, candidate.stage, candidate.ranks, candidate.accumulation, convention=candidate.convention)
    return Evaluation(candidate, COMPUTED, kinds_at_peak(question, candidate, device), held,
                      sent_by_link(question, candidate, wire) | {HOST: link, DISK: io}, compute, exposed, tokens,
                      question.cost(candidate.ranks, tokens, compute + exposed), missing)


def sent_by_link(question: Question, candidate: Candidate, nbytes: int) -> dict[str, int]:
    """A ring goes through all nodes if it has more ranks than one: then its slowest link is between them."""
    return {"inside" if candidate.ranks <= question.cluster.network.per_node else "between": nbytes}


def kinds_at_peak(question: Question, candidate: Candidate, peak: int) -> dict[str, int]:
    """Model states that stay on the device as the stage divides them, and what the peak adds to them."""
    held = model_states(question.model.params, candidate.stage, candidate.ranks, candidate.convention)
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


def _needs(question: Question, candidate: Candidate) -> tuple[int, int, int, int, int]:
    """Bytes on device, host and disk, over the link, and to and from the disk."""
    model, ranks, offloaded = question.model, candidate.ranks, candidate.optimizer != DEVICE
    convention = candidate.convention
    token, tokens = model.token(convention.parameter, candidate.recompute), candidate.micro_batch * question.seq
    kept = token.input if candidate.recompute else token.layer
    before = padded_elements(model.before + model.after, ranks) - model.after

    def peak_with(**activations: int) -> int:
        units = [padded_elements(model.block, ranks)] * model.layers
        return states_peak((before, model.after), units, candidate.stage, ranks,
                           convention=on_device(convention, offloaded), accumulated=candidate.accumulation > 1,
                           offloaded=offloaded, offloaded_parameters=candidate.parameters != DEVICE, **activations)

    in_blocks = peak_with(activations=kept * tokens, recomputed=(token.layer + token.passing - kept) * tokens,
                          head=token.loss * tokens)
    # When the backward ends, the gradient of the embedding is not in its bucket yet. A tied one has two, and their sum.
    at_the_end = peak_with() + convention.gradient * model.vocabulary * model.width * (3 if model.tied else 1)
    peak = max(in_blocks, at_the_end)
    largest = max(model.block, model.before + model.after)
    need = needs(candidate.arrangement, model.params, ranks, convention, candidate.accumulation, device_peak=peak,
                 largest_unit=largest)
    return need.device_bytes, need.host_bytes, need.disk_bytes, need.link_bytes, need.io_bytes


def _seconds(question: Question, candidate: Candidate, link: int, io: int) -> tuple[float, float]:
    """(computes, waits) of an optimizer step. What is offloaded moves after the backward, and nothing hides."""
    model, machine, network, rates = question.model, question.cluster.machine, question.cluster.network, question.rates
    element, ranks, samples = candidate.convention.parameter, candidate.ranks, candidate.micro_batch
    tokens, token = samples * question.seq, model.token(candidate.convention.parameter, candidate.recompute)

    def layer(passes: int, block: int = model.block) -> float:
        flops = block_flops(block, model.width, question.seq, samples, passes)
        return machine.seconds(flops, passes * element * block) + machine.seconds(0, tokens * moved * passes)

    moved = token.moved_layer / (4 if candidate.recompute else 3)
    forward = layer(1)
    # Recomputation ends when all that the backward needs is there, which is before a block's last matrix.
    backward = layer(2) + candidate.recompute * layer(1, model.block - model.inner * model.width)
    head = (machine.seconds(6 * tokens * model.vocabulary * model.width, 0)
            + machine.seconds(0, tokens * token.moved_loss))
    owned = share_of(model.params, ranks)
    states = machine.seconds(0, state_traffic(candidate.stage, element, model.params, owned, candidate.accumulation))
    publishing = machine.seconds(0, PUBLISHING_TRAFFIC[element] * owned)
    rest, away = candidate.accumulation * head + states, 0.0
    if candidate.optimizer != DEVICE:
        rest -= machine.seconds(0, ADAM_TRAFFIC * (owned if candidate.stage else model.params))
        away = link / rates.link + ADAM_TRAFFIC * owned / rates.host + (io / rates.disk if io else 0)

    def seconds(numel: int) -> float:
        return network.seconds((ranks - 1) * share_of(numel, ranks) * element, ranks) if ranks > 1 else 0.0

    time = step_time(candidate.stage, candidate.accumulation, model.layers, forward, backward, rest, publishing,
                     seconds(model.block), seconds(model.before) + seconds(model.after))
    return time.compute, time.exposed + away
