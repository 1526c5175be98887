"""Symptoms that are one number each, where no training of `scene` shows them: of a writer, of experts, of a kernel.

Each function computes its number on a rank in a moment, and says in its first line what it is; `Bug.right` is what it is without a bug.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...comm import Comm
from ...inference import Server
from ...kernels.adamw import FusedAdamW, adamw
from ...kernels.linear_loss import linear_cross_entropy
from ...models.gpt2 import GPT, GPTConfig
from ...parallel.experts import MixtureOfExperts, balance_loss, expert_parallel, route
from ...rl import Rollout, Sampler, advantages, improve, log_probs, mean_over

V, BLOCK, PROMPTS = 16, 4, [[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9]]


def small_writer() -> GPT:
    """Sure enough of itself that temperatures and updates are seen."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(2, 2, 16, block_size=32, vocab_size=V, tied=False))
    model.lm_head.weight.data *= 20
    return model


def rollout_of(model: nn.Module, temperature: float = 1.0, stop: int | None = None) -> tuple[Sampler, Rollout]:
    sampler = Sampler(model, 1024, torch.Generator().manual_seed(0), temperature)
    return sampler, sampler(PROMPTS, 8, 6, stop)


def apart(model: nn.Module, rollout: Rollout) -> Tensor:
    """(B, T): log-probabilities of what was written, by the trainer and by the writer."""
    with torch.no_grad():
        return log_probs(model, rollout) - rollout.drawn_BT


def scored_apart() -> float:
    """Log of a token's ratio, the mean, where nothing has changed since it was drawn at temperature 0.6."""
    _, rollout = rollout_of(model := small_writer(), 0.6)
    return mean_over(apart(model, rollout), rollout.written_BT).item()


def apart_after_update() -> float:
    """Log of a token's ratio, the largest, for what the sampler writes after an update, before the next one."""
    sampler, rollout = rollout_of(model := small_writer())
    improve(model, torch.optim.SGD(model.parameters(), lr=1.0), rollout, advantages(torch.arange(16.0), 8))
    return apart(model, sampler(PROMPTS, 8, 6)).abs().max().item()


def pushed_further() -> float:
    """The gradient's norm where all tokens are better than others and e times as likely as when they were drawn."""
    _, rollout = rollout_of(model := small_writer())
    moved = Rollout(rollout.tokens_BS, rollout.written_BT, (rollout.drawn_BT - 1) * rollout.written_BT)
    return improve(model, torch.optim.SGD(model.parameters(), lr=0.0), moved, torch.ones(16)).norm


def ends_that_count() -> float:
    """Of the answers that end with the token that ends them, the share of which it is learned."""
    _, rollout = rollout_of(small_writer(), stop=7)
    lengths_B = (rollout.tokens_BS != 0).cumsum(1).argmax(1)  # the place of the last token that is no padding
    ends_B = rollout.tokens_BS.gather(1, lengths_B[:, None])[:, 0] == 7
    return rollout.written_BT.gather(1, lengths_B[:, None] - 1)[ends_B].float().mean().item()


def written_after_zero() -> float:
    """Tokens of an answer that is ended by token 0, where the writer always chooses 0 and may write 8."""
    server = Server(small_writer(), 8, BLOCK, choose=lambda logits: 0)
    request = server.add(PROMPTS[0], 8, stop=0)
    server.run()
    return float(len(request.generated))


def wrong_beside_equal() -> float:
    """Of two requests with the same prompt, which fills its blocks, and a third beside them: tokens that are not those of a request alone."""
    def served(*prompts: list[int]) -> list[list[int]]:
        server, requests = Server(model, 40, BLOCK, budget=64), []
        for prompt in prompts:  # each comes when the one before has its first token
            requests.append(server.add(prompt, 6))
            server.step()
        server.run()
        return [request.generated for request in requests]

    model, prompts = small_writer(), [PROMPTS[0], PROMPTS[1], PROMPTS[0]]
    together, alone = served(*prompts), [served(prompt)[0] for prompt in prompts]
    return float(sum(one != other for ours, theirs in zip(together, alone, strict=True) for one, other in zip(ours, theirs, strict=True)))


def experts_norm() -> float:
    """The norm of the experts' gradient on these ranks, which have different ones, by that of one process. Collective."""
    comm = Comm()
    torch.manual_seed(0)
    mixture = MixtureOfExperts(8, 16, 2 * comm.world_size, 1)
    x_NC = torch.randn(16 * comm.world_size, 8)
    experts = [param for name, param in mixture.named_parameters() if "experts" in name]
    mixture(x_NC).square().mean().backward()
    whole = torch.stack([param.grad.square().sum() for param in experts]).sum()
    mixture.zero_grad()
    mixture = expert_parallel(mixture, comm)
    mixture(x_NC.chunk(comm.world_size)[comm.rank]).square().mean().backward()
    cut = torch.stack([param.grad.square().sum() for param in mixture.parameters() if hasattr(param, "expert_comm")]).sum()
    return (comm.all_reduce(cut) / whole).sqrt().item()


def balance_beside_one_process() -> float:
    """The mean of the ranks' balance losses, less that of one process, where each rank's tokens prefer other experts. Collective."""
    comm = Comm()
    logits_NE = torch.randn(16 * comm.world_size, 4, generator=torch.Generator().manual_seed(0))
    logits_NE[:16] += torch.tensor([2.0, 0, 0, 0])
    own = balance_loss(route(logits_NE.chunk(comm.world_size)[comm.rank], 1), comm)
    return (comm.all_reduce(own.clone()) / comm.world_size - balance_loss(route(logits_NE, 1))).item()


def beside_a_late_parameter() -> float:
    """How far a parameter moves at step 110, by torch's AdamW, where a second one has its first gradient at step 101."""
    def moved(make) -> float:
        early, late = (nn.Parameter(torch.ones(4)) for _ in range(2))
        optimizer, draw, before = make([early, late]), torch.Generator().manual_seed(0), early
        for step in range(1, 111):
            before = early.detach().clone()
            early.grad = torch.randn(4, generator=draw) + 1
            late.grad = torch.ones(4) if step > 100 else None
            optimizer.step()
        return (early - before).norm().item()

    return moved(lambda params: FusedAdamW(params, update=adamw, weight_decay=0.0)) / moved(
        lambda params: torch.optim.AdamW(params, weight_decay=0.0))


def under_a_factor() -> float:
    """The gradient's norm of 128 times the loss in chunks, by that of 128 times the loss of whole logits."""
    draw = torch.Generator().manual_seed(0)
    x_NC, weight_VC = (torch.randn(size, 8, generator=draw).requires_grad_() for size in (12, V))
    targets = torch.randint(V, (12,), generator=draw)
    losses = linear_cross_entropy(x_NC, weight_VC, targets, 5), F.cross_entropy(x_NC @ weight_VC.T, targets)
    ours, exact = (nn.utils.get_total_norm(torch.autograd.grad(128 * loss, (x_NC, weight_VC))) for loss in losses)
    return (ours / exact).item()
