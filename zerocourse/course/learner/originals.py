"""Where the course's notebooks are, and a learner's copies of all of them.

In a checkout they are the authors' notebooks, beside the package. An installed package has them inside, made into copies when
its wheel was built (`setup.py`), so that it needs no checkout.
"""

from pathlib import Path

from ...errors import BadInput
from . import copies

PACKAGE = Path(__file__).parents[2]
FOLDERS = ("notebooks", "exercises")  # of a checkout, and of a learner's folder
INSIDE = Path("course", "learner", "originals")  # of the package


def copies_of_all(ours: bool = True) -> dict[str, str]:
    """The text of each copy by its place in a learner's folder, such as notebooks/05_zero1.ipynb, in order.

    ours: with the cells that show our version (see `copies.learners_copy`). Raises BadInput where there are none at all.
    """
    root = above()
    made = {path.relative_to(root).as_posix(): copies.written(copies.learners_copy(copies.read(path), ours)) for path in notebooks(root)}
    if not made:
        raise BadInput(f"{root} has no notebooks of the course: install the package from a checkout, or from a wheel that was built in one")
    return made


def above() -> Path:
    """The folder of the folders of notebooks."""
    return inside if (inside := PACKAGE / INSIDE).is_dir() else PACKAGE.parent


def notebooks(above: Path) -> list[Path]:
    return [path for name in FOLDERS for path in sorted((above / name).glob("[0-9][0-9]_*.ipynb"))]


def put_inside(package: Path) -> None:
    """Write the copies into a package that is being built."""
    for name, text in copies_of_all().items():
        target = package / INSIDE / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
