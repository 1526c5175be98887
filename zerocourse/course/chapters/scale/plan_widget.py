"""An explorer of plans: a way to train on a cluster, what it needs, and the verdict. By formula, so it is quick.

Tensor and pipeline parallelism are two more controls. A mesh that cannot be is told in a sentence.
"""

from ....errors import BadInput
from ....formulas.units import gb
from ....formulas.what_fits import DEVICE, HOST
from ....planning import Candidate, Evaluation, Question, ask, computed
from ....planning.mesh_parts import refusal
from ....planning.reasons import by_axis, ranks_of, too_large
from ....simulation.clusters import CLUSTERS
from ...show.widgets import Control, explore
from .plots_plan import plan_figure

MODELS = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "llama-7b", "llama-13b", "llama-70b", "llama3-8b",
          "llama3-405b")
RANKS = tuple(2**power for power in range(11))
HOST_BYTES = 128 * 10**9  # of the host's memory, for each rank


def evaluations(model: str, cluster: str, stage: int, ranks: int, micro_batch: int, recompute: bool, tensor: int = 1, pipeline: int = 1,
                accumulation: int = 1, offload: bool = False, half: bool = True) -> tuple[Question, dict[str, Evaluation]]:
    """The question, and all four stages of one way to train, by name. offload: the optimizer's states lie on the host, which has
    HOST_BYTES for each rank, where a stage divides them. Raises BadInput, too, for a mesh that cannot be."""
    question = ask(model, cluster, ranks=(ranks,), host=HOST_BYTES * offload)
    ways = [Candidate(each, ranks, micro_batch, accumulation, half, recompute, HOST if offload and each else DEVICE, tensor=tensor,
                      pipeline=pipeline) for each in range(4)]
    if offload and tensor * pipeline > 1:
        raise BadInput("on a mesh nothing is offloaded here: switch offload off, or set the tensor and the pipeline axis to 1")
    if (why := refusal(question.model, ways[0])) is not None:
        raise BadInput(why)
    return question, {("▸ " if way.stage == stage else "") + str(way.arrangement): computed(question, way)
                      for way in ways}


def verdict(question: Question, chosen: Evaluation, others: dict[str, Evaluation]) -> str:
    """Does it fit, how fast is it, and what sends least among those that fit?"""
    way = chosen.candidate
    begins = (f"{question.model.name} on {ranks_of(way)}{way.mesh and f' ({way.mesh})'} of {question.cluster_name}, {way.arrangement} with "
              f"micro-batch {way.micro_batch}{f' × {way.accumulation}' * (way.accumulation > 1)} and {'' if way.recompute else 'no '}recomputation: ")
    if not chosen.fits:
        fitting = [str(each.candidate.arrangement) for each in others.values() if each.fits]
        return begins + too_large(question, chosen) + (
            f" With this micro-batch {' and '.join(fitting)} would fit." if fitting else
            " No stage fits so: take a smaller micro-batch, recomputation, more ranks, or more of them for one copy.")
    axes = "; ".join(by_axis(chosen))
    return begins + (f"it fits, with {gb(question.budgets['device'] - chosen.peak_bytes)} to spare. A step takes about "
                     f"{chosen.step_seconds:.3g} s, of which the rank waits {chosen.exposed_seconds:.2g} s"
                     f"{'' if axes else ' for its link'}, and a card does {chosen.tokens_per_card:,.0f} tokens a second."
                     + f" On this mesh {axes}." * bool(axes))


def planner(model: str = "llama-7b", cluster: str = "8xA100", stage: int = 2, ranks: int = 8, micro_batch: int = 2,
            recompute: bool = False, tensor: int = 1, pipeline: int = 1, accumulation: int = 1,
            offload: bool = False) -> None:
    """The controls, the verdict and the picture, which begin with these values. Raises BadInput for other values."""
    def describe(**values) -> str:
        question, found = evaluations(**values)
        return verdict(question, list(found.values())[values["stage"]], found)

    def draw(**values):
        question, found = evaluations(**values)
        return plan_figure(found, question.budgets["device"])

    if model not in MODELS:
        raise BadInput(f"the planner does not offer {model!r}: it has {', '.join(MODELS)}")
    explore(draw, describe, model=Control(MODELS, model, "list"), cluster=Control(tuple(CLUSTERS), cluster, "list"),
            ranks=Control(RANKS, ranks), micro_batch=Control(tuple(2**power for power in range(8)), micro_batch),
            stage=Control(range(4), stage), recompute=Control({"off": False, "on": True}, recompute),
            tensor=Control(RANKS[:4], tensor, label="tensor axis"), pipeline=Control(RANKS[:6], pipeline, label="pipeline axis"),
            accumulation=Control(tuple(2**power for power in range(8)), accumulation, label="micro-batches"),
            offload=Control({"off": False, "optimizer on the host": True}, offload))
