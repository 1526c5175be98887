"""What a page asks of Python, in the browser: a command with its arguments and files, as one would type it."""

import contextlib
import io
import os
from pathlib import Path

from zerocourse.cli import main
from zerocourse.formulas.gpt2_config import CONFIGS
from zerocourse.formulas.units import gb

os.environ["COLUMNS"] = "120"


def answer(words, files) -> dict:
    """Run one command. words: its arguments.   files: texts by name, written where the command reads them.

    {"status", "out", "err"}: as a shell would have them.
    """
    for name, text in files.items():
        Path(name).write_text(text)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(list(words))
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def sizes(counts) -> list[str]:
    """Bytes as the commands write them."""
    return [gb(int(count)) for count in counts]


def models() -> list[str]:
    """The models that commands know by name."""
    return list(CONFIGS)
