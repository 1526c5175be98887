"""What commands write to stdout, which may be a full disk or a pipe that nobody reads any more."""

import os
import sys

from ..errors import BadInput


def write(text: str = "") -> bool:
    """Write it, and what was printed before, at once. False: nobody reads any more, as when `head` has seen enough.

    Raises BadInput when it cannot be written, as on a full disk. After either, stdout goes nowhere: Python would
    try once more when it ends, and complain.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        return True
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return False
        raise BadInput(f"stdout cannot be written: {error.strerror}") from error
