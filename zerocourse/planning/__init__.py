"""Which stage, how many ranks, which micro-batch: formulas evaluate all candidates, simulations the best few.

    model_sizes  a model's parameters, and what a token costs in it      candidate  a way to train, and what it comes to
    question     what is asked: model, cluster, batch, budgets           computed   a candidate evaluated by formula
    search       all candidates, their order, and the plan               simulated  a candidate evaluated by a simulation
    reasons      the plan in sentences, and why its neighbours are not taken
"""

from .candidate import Candidate, Evaluation
from .computed import computed
from .question import Question, ask
from .search import Plan, candidates, plan
from .simulated import simulated

__all__ = ["Candidate", "Evaluation", "Plan", "Question", "ask", "candidates", "computed", "plan", "simulated"]
