"""The loss that keeps all experts busy: E · Σ f_e · P_e, which is 1 where every expert gets as much, and E where one gets all.

f_e is the share of all pairs that expert e gets, and has no gradient; P_e is its mean probability over the tokens. Where
ranks have different samples, f_e counts the pairs of *all* of them, and P_e is each rank's own: the mean of the ranks' losses
is then the loss of one process, exactly. With each rank's own counts it is another loss, which no norm shows at first.
Source: Fedus et al. 2021, arXiv 2101.03961, equations 4 to 6.
"""

import torch
from torch import Tensor

from ...comm import Comm
from .routing import Routing


def balance_loss(routing: Routing, comm: Comm | None = None) -> Tensor:
    """A scalar in fp32. comm: of all ranks that have other samples; None: this rank has them all. Collective where it has peers."""
    experts = routing.probabilities_NE.shape[1]
    counts_E = torch.bincount(routing.experts_Nk.flatten(), minlength=experts).float()
    if comm is not None and comm.peers:
        counts_E = comm.all_reduce(counts_E)
    return experts * (counts_E / counts_E.sum() * routing.probabilities_NE.mean(0)).sum()
