"""Which stage, how many ranks, which micro-batch: formulas evaluate all candidates, simulations the best few.

    model_sizes    a model's parameters, and what a token costs    candidate  a way to train, and what it comes to
    question       what is asked: model, cluster, batch, budgets   search     all candidates, their order, and the plan
    by_formula     a candidate evaluated by formula                reasons    the plan in sentences, and why not its
    by_simulation  a candidate evaluated by a simulation                      neighbours
    plan_files     the plan as files with which it is run
"""

from .by_formula import computed
from .by_simulation import simulated
from .candidate import Candidate, Evaluation
from .question import Question, ask
from .search import Plan, candidates, plan

__all__ = ["Candidate", "Evaluation", "Plan", "Question", "ask", "candidates", "computed", "plan", "simulated"]
