"""A candidate evaluated by a simulation: the package's own stage on tensors without memory, in the cluster's time."""

from ..formulas.what_fits import DEVICE, DISK, HOST
from ..simulation import SimulatedJob, simulate_time
from .by_formula import KINDS, sent_by_link
from .candidate import SIMULATED, AxisTraffic, Candidate, Evaluation
from .mesh_parts import links
from .question import Question


def can_be_simulated(candidate: Candidate) -> bool:
    """A simulation has no host and no disk, and neither tensor nor pipeline parallelism."""
    return candidate.optimizer == DEVICE and candidate.replica == 1


def simulated(question: Question, candidate: Candidate) -> Evaluation:
    """A few seconds for a model of billions.

    Of many micro-batches one and two are simulated, because each further one sends as much, and takes as long but for
    how its gradients are added up (well below one percent).
    """
    one = _run(question, candidate, 1)
    two = _run(question, candidate, 2) if candidate.accumulation > 1 else one
    more = candidate.accumulation - 1

    def of_step(key: str):
        return one[key] + more * (two[key] - one[key])

    compute, exposed, tokens = of_step("compute_seconds"), of_step("exposed_seconds"), candidate.samples * question.seq
    at_peak, peak = two["peak_kinds"], two["peak_bytes"]
    kinds = {name: at_peak[name] for name in KINDS[:3]}
    over = peak - question.budgets[DEVICE]
    link = links(candidate, question.cluster.network.per_node)["data"]
    sent = sent_by_link((AxisTraffic("data", link, of_step("sent_bytes"), exposed),)) | {HOST: 0, DISK: 0}
    kinds[KINDS[3]] = peak - sum(kinds.values())
    return Evaluation(candidate, SIMULATED, kinds, {DEVICE: peak, HOST: 0, DISK: 0},
                      sent, compute, exposed, tokens, question.cost(candidate.ranks, tokens, compute + exposed),
                      {DEVICE: over} if over > 0 else {})


def _run(question: Question, candidate: Candidate, accumulation: int) -> dict:
    job = SimulatedJob(question.model.name, candidate.stage, candidate.ranks, micro_batch=candidate.micro_batch,
                       seq=question.seq, accumulation=accumulation, half=candidate.half, recompute=candidate.recompute)
    return simulate_time(job, question.cluster)
