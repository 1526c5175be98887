"""Where the learner's own folder is."""

import os
from pathlib import Path

from ...errors import BadInput

VARIABLE = "ZEROCOURSE_FOLDER"
OF_MAKE_LAB = Path("learning")  # which it makes in a clone
MARK = ".zerocourse"  # the hidden folder that makes a folder a learner's


def learner_folder() -> Path | None:
    """The folder that $ZEROCOURSE_FOLDER names, else the nearest one, from the working directory upwards, that has a
    `.zerocourse/`. None elsewhere, as in a clone, where nothing is remembered.

    Raises BadInput where the variable names no folder.
    """
    if named := os.environ.get(VARIABLE):
        folder = Path(named).expanduser().resolve()
        if not folder.is_dir():
            raise BadInput(f"{VARIABLE} is {named}, which is no folder: name the one that `zerocourse course` made")
        return folder
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / MARK).is_dir()), None)


def use_folder_of_make_lab() -> Path:
    """In a clone, outside of any learner's folder, this process works in the one that `make lab` has made there from here on.
    Returns where to look for notebooks: that folder, else the working directory."""
    if learner_folder() is None and (OF_MAKE_LAB / MARK).is_dir():
        os.environ[VARIABLE] = str(OF_MAKE_LAB.resolve())
        return OF_MAKE_LAB
    return Path()
