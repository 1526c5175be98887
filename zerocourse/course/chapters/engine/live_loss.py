"""The loss of a run as it goes: a curve that grows in the notebook, and stays as a picture when the run has ended."""

import re
import time

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ... import show
from ...show.alternative_text import described
from ...show.figures import panels
from ...show.palette import INK

RANK = re.compile(r"\[(\d+)\] ?")  # in front of a line
LOSS = re.compile(r"\bloss['\"]?\s*[:=]?\s*['\"]?(nan|inf|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
SECONDS = 0.5  # between two drawings at least; and five times what a drawing takes, so that it stays a small part of the run


class LiveLoss:
    """Draws what a launch says of its loss, while it runs.

        with LiveLoss() as curve:
            launch("train.py", echo=curve.line, progress=curve.progress)

    `line` reads it from printed lines such as "loss 3.2" or Trainer's "{'loss': '3.2', ...}"; those of other ranks than 0 are
    passed over, and lines without a loss are printed. `progress` gets it from `zerocourse.launch.progress(step, total, loss=...)`.
    losses: what has been drawn, by step.
    """

    def __init__(self, title: str = "The loss of rank 0"):
        self.title, self.losses = title, {}
        self._picture = None  # what the notebook shows
        self._draw_at = self._drawn = 0

    def __enter__(self) -> "LiveLoss":
        return self

    def __exit__(self, *_) -> None:
        if len(self.losses) > self._drawn:
            self._draw()

    def line(self, text: str) -> None:
        """A line that a rank printed."""
        rank, loss = RANK.match(text), LOSS.search(text)
        if loss is None:
            print(text)
        elif rank is None or rank[1] == "0":
            self._add(len(self.losses) + 1, float(loss[1]))

    def progress(self, step: int, total: int, info: dict) -> None:
        """What rank 0 said by `zerocourse.launch.progress`."""
        if "loss" in info:
            self._add(step, float(info["loss"]))

    def figure(self) -> Figure:
        figure, axes = panels(7, 2.6)
        axes.plot(list(self.losses), list(self.losses.values()), color=INK, linewidth=1.2, marker="." if len(self.losses) < 50 else "")
        axes.set(xlabel="step", ylabel="loss (nats per token)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.suptitle(self.title)
        return described(figure)

    def _add(self, step: int, loss: float) -> None:
        self.losses[step] = loss
        if time.monotonic() > self._draw_at:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import DisplayHandle

        begun, shown = time.monotonic(), show.figure(self.figure())
        if self._picture is None:
            self._picture = DisplayHandle()
            self._picture.display(shown)
        else:
            self._picture.update(shown)
        now = time.monotonic()
        self._drawn, self._draw_at = len(self.losses), now + max(SECONDS, 5 * (now - begun))
