"""The exercises of the course: what there is, how long each takes and how hard it is.

  zerocourse list
  zerocourse list 5
"""

from ..course.checks import exercises
from ..course.checks.exercise import chapters
from ..errors import BadInput
from . import Outcome
from .arguments import Checked, whole

HELP = "the exercises: what there is"


def configure(parser):
    parser.add_argument("chapter", nargs="?", action=Checked, read=whole(0), help="of this chapter alone")


def run(args) -> Outcome:
    if args.chapter is not None and args.chapter not in chapters():
        raise BadInput(f"chapter {args.chapter} has no exercises: chapters {', '.join(map(str, chapters()))} have.")
    listed = exercises(args.chapter)
    data = {id: {"title": each.title, "minutes": each.minutes, "difficulty": each.difficulty, "chapter": each.chapter}
            for id, each in listed.items()}
    width = max((len(each.title) for each in listed.values()), default=0)
    rows = [f"{id:>5}  {each.title:{width}}  {each.minutes:3} min  {each.stars}" for id, each in listed.items()]
    hours = sum(each.minutes for each in listed.values()) / 60
    return Outcome("\n".join([*rows, "", f"{len(listed)} exercises, about {hours:.0f} hours"]), data)
