"""A bar for what takes long: in a notebook, and where stderr is a terminal; a pipe or a log gets none."""

import sys


def is_watched() -> bool:
    """Whether somebody may be looking: a notebook's page, or a terminal."""
    ipython = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel") or sys.stderr.isatty()


def progress_bar(total: int | None = None, *, wanted: bool = True, **options):
    """tqdm's. wanted: False makes one that is never seen.   options: tqdm's own."""
    from tqdm.auto import tqdm

    return tqdm(total=total, disable=not (wanted and is_watched()), **options)
