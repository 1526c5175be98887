"""A line under a cell that takes long: that it still runs, and for how long. It is gone when the cell has ended.

It is shown to who sits there alone: a notebook that a program executes (nbconvert, nbval, a Kaggle version) keeps its outputs
as they are. Where a progress bar is drawn, the bar says it.
"""

import sys
import threading
import time

AFTER_SECONDS = 5.0
EVERY_SECONDS = 1.0


class WorkingLine:
    """The line of the cell that runs now, drawn by a thread of its own. `begin` and `end` are IPython's events of a cell."""

    def __init__(self, shell):
        self.shell, self.over, self.thread = shell, threading.Event(), None

    def begin(self, info=None) -> None:
        self.end()
        if getattr(getattr(self.shell, "kernel", None), "_allow_stdin", False):  # whoever asks can be asked: a person
            self.over.clear()
            self.thread = threading.Thread(target=self._draw, daemon=True, name="zerocourse-working-line")
            self.thread.start()

    def end(self, result=None) -> None:
        thread, self.thread = self.thread, None
        if thread is not None:
            self.over.set()
            thread.join()

    def _draw(self) -> None:
        from IPython.display import display

        began, line = time.monotonic(), None
        wait = AFTER_SECONDS
        while not self.over.wait(wait):
            wait = EVERY_SECONDS
            if line is None and has_bar():
                continue
            shown = {"text/plain": f"working … {time.monotonic() - began:.0f} s"}
            if line is None:
                line = display(shown, raw=True, display_id=True)
            else:
                line.update(shown, raw=True)
        if line is not None:
            line.update({"text/plain": ""}, raw=True)


def has_bar() -> bool:
    """Whether a progress bar of tqdm is on the page."""
    module = sys.modules.get("tqdm")
    return bool(module and any(not bar.disable for bar in list(getattr(module.tqdm, "_instances", ()))))


def show_long_cells(shell) -> None:
    line = WorkingLine(shell)
    shell.events.register("pre_run_cell", line.begin)
    shell.events.register("post_run_cell", line.end)
