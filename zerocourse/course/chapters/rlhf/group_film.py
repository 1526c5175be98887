"""One step of GRPO as a film: the answers of a group, what they are worth, and what the step makes of their chances."""

import copy

import torch

from ....models.gpt2 import GPT
from ....rl import advantages, improve, log_probs
from ...show.cells.sentences import UntrueSentence
from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg
from .bracket_runs import GROUP, one_group

ROW, LEFT, TOP, FULL = 34.0, 20.0, 40.0, 250.0  # units: of an answer, where they begin, and how long a bar of all chances is
BETTER, WORSE, BEFORE = "#009e73", "#d55e00", "#cfcfcf"
MOMENTS = {"Write": "The model writes {group} answers to {prompt}. A bar says how likely each of them was.",
           "Reward": "A rule looks at each answer, and says 1 or 0. Of {group}, {right} are right.",
           "Compare": "Each answer is compared with the mean of its group, {mean:.2f}. A right one is better by {more:.2f}, "
                      "a wrong one worse by {less:.2f}.",
           "Learn": "One step later the right ones are likelier, and the wrong ones less likely. (The grey bar is from before.)"}


def group_film(start: GPT, rate: float = 1e-3) -> Film:
    """Of a step that is made on a copy of the model. Raises UntrueSentence where its last words are not so."""
    model = copy.deepcopy(start)
    prompt, answers, rollout = one_group(model)
    rewards = torch.tensor([reward for _, reward in answers])
    before = rollout.drawn_BT.sum(1).exp()
    improve(model, torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0), rollout, advantages(rewards, GROUP))
    with torch.no_grad():
        after = log_probs(model, rollout).sum(1).exp()
    if not ((after > before) == (rewards > 0)).all():
        raise UntrueSentence(f"not all right answers have become likelier, and all others less likely: {before.tolist()}, {after.tolist()}")
    mean = rewards.mean().item()
    words = {"group": GROUP, "prompt": prompt, "right": int(rewards.sum()), "mean": mean, "more": 1 - mean, "less": mean}
    frames = [Frame(drawn([answer for answer, _ in answers], rewards, before, after, moment), said.format(**words), name)
              for moment, (name, said) in enumerate(MOMENTS.items())]
    return Film("A step of GRPO", frames, " ".join(frame.words for frame in frames))


def drawn(answers: list[str], rewards: torch.Tensor, before: torch.Tensor, after: torch.Tensor, moment: int) -> svg.Drawing:
    drawing = svg.Drawing(LEFT + 640, TOP + ROW * len(answers) + 6)
    most = max(before.max().item(), after.max().item())
    for x, name, since in ((LEFT, "answer", 0), (LEFT + 120, "chance", 0), (LEFT + 400, "reward", 1), (LEFT + 500, "better by", 2)):
        if moment >= since:
            drawing.text(x, TOP - 14, name, size=13, color=FAINT)
    for row, answer in enumerate(answers):
        y, reward = TOP + row * ROW, rewards[row].item()
        drawing.text(LEFT, y + 20, answer, size=15)
        width = FULL * before[row].item() / most
        fill = BEFORE if moment == 0 else BETTER if reward else WORSE
        if moment == 3:
            drawing.rect(LEFT + 120, y + 3, width, 9, fill=BEFORE)
            drawing.rect(LEFT + 120, y + 14, FULL * after[row].item() / most, 12, fill=fill, data={"after": f"{after[row].item():.4g}"})
        else:
            drawing.rect(LEFT + 120, y + 5, width, 20, fill=fill, data={"before": f"{before[row].item():.4g}"})
        if moment >= 1:
            drawing.text(LEFT + 412, y + 20, f"{reward:.0f}", size=15)
        if moment >= 2:
            drawing.text(LEFT + 500, y + 20, f"{reward - rewards.mean().item():+.2f}", size=15)
    return drawing
