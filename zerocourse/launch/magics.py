"""Cells on several ranks: `%%torchrun` runs a cell as a script, `%%ranks` runs it on ranks that are kept alive.

`%load_ext zerocourse` makes them known. `%%torchrun --help` and `%%ranks --help` say what they take.
"""

import argparse
import contextlib
import os
import shlex
import sys
from pathlib import Path

from .launcher import launch
from .processes.fork_server import start_fork_server
from .processes.parent import PLACES, SWITCH, current_parent
from .processes.position import CELLS
from .ranks import shared
from .working_line import show_long_cells

DEVICES = Path("/dev")


class _MagicParser(argparse.ArgumentParser):
    """Parses the arguments in a magic's line. A mistake is a UsageError of IPython, and does not end the kernel."""

    def __init__(self, name: str, description: str):
        super().__init__(f"%%{name}", description=description, allow_abbrev=False)
        self.add_argument("--nproc", type=int, default=2, help="how many ranks (2)")
        self.add_argument("--device", choices=PLACES, help="where they compute (as ZEROCOURSE_DEVICE says)")
        self.add_argument("--timeout", type=float, help="seconds after which the ranks are stopped")
        self.add_argument("--only", type=lambda text: [int(rank) for rank in text.split(",")],
                          help="show the lines of these ranks, as in 0,2")
        self.add_argument("--quiet", action="store_true", help="show no lines")

    def exit(self, status=0, message=None):
        from IPython.core.error import UsageError
        raise UsageError(message or "")

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}")


def _number(ip) -> int:
    """The number of the running cell: that of the code on the stack, which is the cell's, by IPython's own table of codes.

    IPython counts before or after a cell, depending on its version; and a text that runs again keeps its place in the table.
    """
    numbers, frame = getattr(ip.compile, "_filename_map", {}), sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename in numbers:
            return numbers[frame.f_code.co_filename]
        frame = frame.f_back
    return ip.execution_count


def has_gpu() -> bool:
    """Does the system show an NVIDIA GPU? Without importing torch, which takes seconds."""
    return os.environ.get("CUDA_VISIBLE_DEVICES") != "" and any(DEVICES.glob("nvidia[0-9]*"))


def where_it_computes(place: str) -> str:
    """A line for a notebook on a machine with a GPU.   place: what the environment says of it."""
    if place == "cpu":
        return ("Everything here computes on the CPU, where the text has its numbers from, although there is a GPU: to use it, restart "
                f"the kernel, run %env {SWITCH}=cuda before this cell, and move batches to the model's device.")
    return (f"Models go to the GPU, because {SWITCH} is {place}, so move batches there too, and expect other numbers than the text's: to "
            f"compute on the CPU, restart the kernel and run %env {SWITCH}=cpu before this cell.")


def load_ipython_extension(ip) -> None:
    """Register the magics with an IPython shell, show which cells take long, and get ready to start ranks."""

    def torchrun(line: str, cell: str) -> None:
        parser = _MagicParser("torchrun", "Run this cell as a script under torchrun; its argv is all else here.")
        parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="add to the environment")
        options, argv = parser.parse_known_args(shlex.split(line))
        number = _number(ip)
        script = current_parent().folder / f"cell{number}.py"
        script.write_text(f"# %%torchrun {line}\n{cell}")  # the first line too, so that line numbers are the cell's
        CELLS[str(script)] = number
        env = dict(pair.partition("=")[::2] for pair in options.env)
        ip.user_ns["_results"] = launch(script, nproc=options.nproc, argv=[a for a in argv if a != "--"], env=env,
                                        device=options.device, timeout=options.timeout, only=options.only, quiet=options.quiet)

    def ranks(line: str, cell: str) -> None:
        parser = _MagicParser("ranks", "Run this cell on ranks that are kept alive; they keep its variables until the kernel ends or --restart.")
        parser.add_argument("--restart", action="store_true", help="begin with new ranks, without variables")
        options = parser.parse_args(shlex.split(line))
        pool = shared(options.nproc, options.device)
        pool.only, pool.quiet = options.only, options.quiet
        if options.restart:
            pool.close()
        name = f"<cell {_number(ip)}>"
        CELLS[name] = _number(ip)
        ip.user_ns["_results"] = pool.exec(f"# %%ranks {line}\n{cell}", name=name, timeout=options.timeout)

    if has_gpu():
        print(where_it_computes(os.environ.get(SWITCH, "auto")))
    for magic in (torchrun, ranks):
        ip.register_magic_function(magic, "cell")
    show_long_cells(ip)
    with contextlib.suppress(OSError):  # whoever starts ranks will hear of it
        start_fork_server()
