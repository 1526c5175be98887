"""A small GPT whose feed-forward parts are mixtures of experts, and its training on two ranks: right, or with a mistake of the field."""

from unittest.mock import patch

import torch
from torch import nn

from ....comm import Comm
from ....data.text import load_text
from ....models.gpt2 import GPT, build_model
from ....parallel.experts import MixtureOfExperts, balance_loss, cut_experts, expert_parallel, layer
from ....parallel.experts.routing import Routing, Sorted, route, weighted_sum

EXPERTS, K, TOKENS, ROWS, STEPS, BALANCE = 8, 2, 32, 16, 40, 0.01
MISTAKES = {
    "right": "nothing",
    "doubled": "gradients of experts are added up over the ranks of a group, and not averaged",
    "out of order": "each result goes to the token before, among those of an expert",
    "detached": "the router's weights have no gradient",
    "own counts": "each rank balances the experts by its own tokens",
}
LETTERS = dict(zip("ABCDE", ("own counts", "out of order", "detached", "right", "doubled"), strict=True))  # under which the chapter shows them


def mixture_model(**overrides) -> GPT:
    """The same on every rank, with every expert.   overrides: of the shape of a gpt2-tiny."""
    torch.manual_seed(0)
    model = build_model("gpt2-tiny", **({"n_layer": 2, "block_size": TOKENS} | overrides))
    width = model.config.n_embd
    for block in model.h:
        block.mlp = MixtureOfExperts(width, 2 * width, EXPERTS, K)
    return model


def mixtures(model: GPT) -> list[MixtureOfExperts]:
    return [block.mlp for block in model.h]


def samples(step: int, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and targets (rows, TOKENS) of one step, the same for any number of ranks."""
    dataset, _ = load_text(None, TOKENS)
    draw = torch.Generator().manual_seed(step)
    chosen = [dataset[int(number)] for number in torch.randint(len(dataset), (rows,), generator=draw)]
    return torch.stack([x for x, _ in chosen]), torch.stack([y for _, y in chosen])


def expert_params(model: nn.Module) -> list[nn.Parameter]:
    return [param for name, param in model.named_parameters() if ".experts." in name]


def late_by_one(rows: torch.Tensor, pairs: Sorted, weights: torch.Tensor) -> torch.Tensor:
    """As `weighted_sum`, but each row goes to the pair before its own."""
    return weighted_sum(rows, pairs._replace(order_P=pairs.order_P.roll(1)), weights)


def detached_route(logits: torch.Tensor, k: int) -> Routing:
    """As `route`, but the weights are constants."""
    routing = route(logits, k)
    return routing._replace(weights_Nk=routing.weights_Nk.detach())


def trained(mistake: str = "right", steps: int = STEPS, balance: float = BALANCE) -> dict[str, list]:
    """Train on the ranks of this job, one group of experts. Collective.

    Returns of each step the mean loss, the norms of the gradient of experts and of all else, and by layer the pairs of each expert.
    """
    comm = Comm()
    model = expert_parallel(mixture_model(), comm)
    experts = expert_params(model)
    others = [param for param in model.parameters() if all(param is not each for each in experts)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: dict[str, list] = {"loss": [], "experts": [], "others": [], "busy": []}
    for step in range(steps):
        x, y = (each.chunk(comm.world_size)[comm.rank] for each in samples(step))
        with (patch.object(cut_experts, "weighted_sum", late_by_one if mistake == "out of order" else weighted_sum),
              patch.object(layer, "route", detached_route if mistake == "detached" else route)):
            loss = model(x, y)
        extra = sum(balance_loss(each.routing, None if mistake == "own counts" else comm) for each in mixtures(model))
        (loss + balance * extra).backward()
        for param in others:
            comm.all_reduce(param.grad).div_(comm.world_size)
        if mistake == "doubled":
            for param in experts:
                param.grad *= comm.world_size
        squares = torch.stack([param.grad.square().sum() for param in experts]).sum()
        seen["experts"].append(comm.all_reduce(squares).sqrt().item())
        seen["others"].append(nn.utils.get_total_norm([param.grad for param in others]).item())
        seen["loss"].append(comm.all_reduce(loss.detach().clone()).item() / comm.world_size)
        busy = [torch.bincount(each.routing.experts_Nk.flatten(), minlength=EXPERTS) for each in mixtures(model)]
        seen["busy"].append([comm.all_reduce(counts).tolist() for counts in busy])
        optimizer.step()
        optimizer.zero_grad()
    return seen
