"""A candidate evaluated by a simulation: the package's own stage on tensors without memory, in the cluster's time.

Of a mesh bytes and memory are simulated, and seconds are computed: one rank alone does not know when others are ready.
"""

from dataclasses import replace

from ..formulas.what_fits import DEVICE, DISK, HOST
from ..simulation import SimulatedJob, simulate_time
from ..simulation.one_mesh_rank import SCHEDULES, MeshJob, simulate_mesh
from .by_formula import KINDS, computed, heavier_end, sent_by_link
from .candidate import SIMULATED, AxisTraffic, Candidate, Evaluation
from .mesh_parts import AXES, links
from .question import Question

TO_EXPERTS = ("send", "all_to_all")  # verbs of which a training without a pipeline has none but for experts


def can_be_simulated(candidate: Candidate) -> bool:
    """A simulation has no host and no disk, and ZeRO cannot reduce what a zero-bubble schedule computes apart."""
    return candidate.optimizer == DEVICE and (candidate.pipeline == 1 or candidate.schedule in SCHEDULES)


def simulated(question: Question, candidate: Candidate) -> Evaluation:
    """A few seconds for a model of billions; on a mesh half a minute.

    Of many micro-batches one and two are simulated, because each further one sends as much, and takes as long but for
    how its gradients are added up (well below one percent).
    """
    if candidate.replica > 1:
        return _on_a_mesh(question, candidate)
    one = _run(question, candidate, 1)
    two = _run(question, candidate, 2) if candidate.accumulation > 1 else one
    more = candidate.accumulation - 1

    def of_step(key: str):
        return one[key] + more * (two[key] - one[key])

    compute, exposed, tokens = of_step("compute_seconds"), of_step("exposed_seconds"), candidate.samples * question.seq
    peak = two["peak_bytes"]
    where = links(candidate, question.cluster.network.per_node)
    rows = sum(one["sent"].get(verb, 0) for verb in TO_EXPERTS) * candidate.accumulation
    waits = sum(each.exposed for each in computed(question, candidate).traffic if each.axis == "expert")
    to_experts = [AxisTraffic("expert", where["expert"], rows, waits)] * (candidate.experts_over > 1)
    traffic = (*to_experts, AxisTraffic("data", where["data"], of_step("sent_bytes") - rows, exposed - waits))
    sent = sent_by_link(traffic) | {HOST: 0, DISK: 0}
    return Evaluation(candidate, SIMULATED, _kinds(two), {DEVICE: peak, HOST: 0, DISK: 0},
                      sent, compute, exposed, tokens, question.cost(candidate.ranks, tokens, compute + exposed),
                      _over(question, peak), traffic if candidate.experts_over > 1 else ())


def _on_a_mesh(question: Question, candidate: Candidate) -> Evaluation:
    """Of the rank that holds most: one of the pipeline's two ends.

    Two steps are simulated. One has p micro-batches, which fill the pipeline. The other has 2p, so that gradients of earlier micro-batches
    are there, too. Each further micro-batch sends as much as one of these p.
    """
    formula, p, data = computed(question, candidate), candidate.pipeline, candidate.data * candidate.tensor
    first = heavier_end(question, candidate)[0].first
    few, more = min(p, candidate.accumulation), min(2 * p, candidate.accumulation)
    runs = [simulate_mesh(MeshJob(
        question.model.name, {"pp": p, "dp": candidate.data, "tp": candidate.tensor}, 0 if first else (p - 1) * data,
        candidate.stage, candidate.micro_batch, micro_batches, candidate.schedule, candidate.chunks, seq=question.seq,
        half=candidate.half, recompute=candidate.recompute), like="nccl") for micro_batches in dict.fromkeys((few, more))]

    def of_step(axis: str) -> int:
        sent = [run["sent"][AXES[axis]] for run in runs]
        return sent[-1] + (candidate.accumulation - more) * (sent[-1] - sent[0]) // max(1, more - few)

    traffic = tuple(each._replace(nbytes=of_step(each.axis)) for each in formula.traffic)
    peak = runs[-1]["peak_bytes"]
    return replace(formula, source=SIMULATED, kinds=_kinds(runs[-1]), held={DEVICE: peak, HOST: 0, DISK: 0}, traffic=traffic,
                   sent=sent_by_link(traffic) | {HOST: 0, DISK: 0}, missing=_over(question, peak))


def _kinds(run: dict) -> dict[str, int]:
    kinds = {name: run["peak_kinds"][name] for name in KINDS[:3]}
    return kinds | {KINDS[3]: run["peak_bytes"] - sum(kinds.values())}


def _over(question: Question, peak: int) -> dict[str, int]:
    """What is missing."""
    over = peak - question.budgets[DEVICE]
    return {DEVICE: over} if over > 0 else {}


def _run(question: Question, candidate: Candidate, accumulation: int) -> dict:
    job = SimulatedJob(question.model.name, candidate.stage, candidate.ranks, micro_batch=candidate.micro_batch,
                       seq=question.seq, accumulation=accumulation, half=candidate.half, recompute=candidate.recompute,
                       experts_over=candidate.experts_over)
    return simulate_time(job, question.cluster)
