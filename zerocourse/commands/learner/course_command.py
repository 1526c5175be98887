"""Makes a folder of your own with the course in it: chapters to run and write in, and exercises with blanks beside them.

  zerocourse course                      into the folder learning/ here, or into the learner's folder in which you are
  zerocourse course my-course --update   after a new version of the package
  zerocourse course my-course --reset 05

What you have touched is never overwritten. --update renews what you have not touched, and puts a newer version of the rest
beside it, as newer_05_zero1.ipynb. --reset gives one chapter and its exercises back as they were, and keeps your version
beside them, as mine_05_zero1.ipynb. A cell that you have run counts as touched; opening a notebook does not.
"""

from dataclasses import asdict
from pathlib import Path

from ...course.learner.folder import learner_folder
from ...course.learner.handout import Handout, hand_out, put_tutor, reset
from ...course.learner.originals import FOLDERS
from .. import Outcome
from ..arguments import Checked, path, whole

HELP = "make a folder of your own with the chapters and exercises; --update renews it, --reset gives a chapter back"
DEFAULT = "learning"


def configure(parser):
    parser.add_argument("dir", nargs="?", action=Checked, read=path, metavar="DIR",
                        help=f"the folder (default: the learner's folder in which you are, else {DEFAULT})")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--update", action="store_true", help="renew what you have not touched, and put newer versions beside the rest")
    what.add_argument("--reset", action=Checked, read=whole(0), metavar="NN", help="give this chapter back as it was, such as 05")
    what.add_argument("--without-ours", action="store_true",
                      help="for a class: leave out the cells that show our version of what a learner is to write")


def run(args) -> Outcome:
    folder = args.dir or learner_folder() or Path(DEFAULT)
    done = hand_out(folder, args.update, ours=False if args.without_ours else None) if args.reset is None else reset(folder, args.reset)
    put_tutor(folder)
    return Outcome("\n".join(lines(done)), {**asdict(done), "folder": str(folder)})


def lines(done: Handout) -> list[str]:
    """What to say of it. One file is named; of many, how many there are."""
    chapters, sets = (sum(name.startswith(f"{folder}/") for name in done.written) for folder in FOLDERS)
    said = [f"{chapters} chapters and {sets} sets of exercises are new in {done.folder}"] if done.written else []
    said += [f"{name} is renewed" for name in done.renewed if name not in done.set_aside]
    said += [f"{name} is no longer a part of the course, and is removed" for name in done.removed]
    said += [f"{name} is yours and stays; the newer version is beside it, {Path(beside).name}" for name, beside in done.kept.items()]
    said += [f"{name} is given back; yours is beside it, {Path(mine).name}" for name, mine in done.set_aside.items()]
    if done.older:
        said.append(f"there are newer versions of {', '.join(done.older)}: zerocourse course {done.folder} --update")
    first = done.folder / "notebooks" / "00_start_here.ipynb"
    return [*(said or [f"everything in {done.folder} is as new as the package"]), f"begin with {first}, in JupyterLab"]
