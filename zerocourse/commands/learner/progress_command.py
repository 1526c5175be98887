"""What a learner has done: chapters, exercises by kind, and how predictions compare with what was measured.

  zerocourse progress                        in the folder that `zerocourse course`
                                             or `make lab` made, or below it
  zerocourse progress my-course
  zerocourse progress --picture calibration.svg

Checks and predictions in a notebook leave it in the folder's record, .zerocourse/progress.jsonl, and so does
`zerocourse check`. The picture shows predicted / measured, and is saved as calibration.png in the folder. All of it
stays on this machine.
"""

from collections.abc import Iterable
from pathlib import Path

from ...errors import BadInput
from .. import Outcome
from ..arguments import Checked, check_file, path
from ..terminal import table, width

HELP = "what you have done, and how your predictions compare"
PICTURES = ".png", ".svg"


def configure(parser):
    parser.add_argument("folder", nargs="?", action=Checked, read=path, metavar="DIR",
                        help="the learner's folder (the one this is run in)")
    parser.add_argument("--picture", action=Checked, read=path, metavar="FILE",
                        help="save the picture of the predictions here, a .png or .svg (default DIR/calibration.png)")


def run(args) -> Outcome:
    from ...course.learner.record import events
    from ...course.learner.remembered.summary import summarized
    from .list_command import exercises

    folder = folder_of_learner(args.folder)
    picture = args.picture or folder / "calibration.png"
    if picture.suffix not in PICTURES:
        raise BadInput(f"--picture is {picture}: its name must end in {' or '.join(PICTURES)}")
    summary, listed = summarized(events(folder)), exercises()
    ratios = summary.ratios()
    if ratios:
        check_file(picture, "--picture")
        from ...course.learner.remembered.calibration import calibration_figure, calibration_lines  # here, because matplotlib takes a second
        calibration_figure(ratios).savefig(picture, dpi=150)
        drawn = ["", "predicted / measured", *calibration_lines(ratios, width()), f"The picture is in {picture}."]
    else:
        drawn = ["", "There is no prediction yet that was measured: chapters ask for them in cells of their own."]
    text = [*chapter_lines(summary, listed), "", *kind_lines(summary, listed), *written_lines(summary, listed), *drawn, *judged_lines(summary)]
    return Outcome("\n".join(text), as_data(summary, listed, folder, picture if ratios else None))


def folder_of_learner(named: Path | None) -> Path:
    """The learner's folder that is named, or the one that this is run in. Raises BadInput where there is none."""
    from ...course.learner.folder import MARK, learner_folder, use_folder_of_make_lab

    use_folder_of_make_lab()
    folder = named or learner_folder()
    if folder is None:
        raise BadInput("this is no learner's folder, nor below one: name one, or make one with `zerocourse course my-course`")
    if not (folder / MARK).is_dir():
        raise BadInput(f"{folder} is no learner's folder: it has no {MARK}, which `zerocourse course {folder}` makes")
    return folder


def chapter_lines(summary, listed: dict[str, dict]) -> list[str]:
    """A row for each chapter in which something was done."""
    rows = by_chapter(summary, listed)
    if not rows:
        return ["Nothing is done yet: open a chapter, predict, and check an exercise."]
    begun = [[f"{number:02}", each["title"], f"{each['passed']} of {each['exercises']}", f"{each['points']} of {each['of_points']}",
              f"{each['measured']} of {each['predictions']}"] for number, each in rows.items()]
    total = [sum(each[name] for each in rows.values()) for name in ("passed", "exercises", "points", "of_points", "measured", "predictions")]
    return table([["chapter", "", "exercises", "points", "predictions measured"], *begun,
                  ["", "together", *(f"{total[at]} of {total[at + 1]}" for at in (0, 2, 4))]], "<<>>>")


def by_chapter(summary, listed: dict[str, dict]) -> dict[int, dict]:
    from ...course.chapters import TOPICS
    from ...course.learner.remembered.summary import chapter_of

    numbers = sorted({chapter for id in (*summary.checked, *summary.predicted) if (chapter := chapter_of(id)) in TOPICS})
    rows = {}
    for number in numbers:
        asked = [id for id, each in listed.items() if each["chapter"] == number]
        predicted = [each for id, each in summary.predicted.items() if chapter_of(id) == number]
        rows[number] = {"title": TOPICS[number].replace("_", " "), "passed": sum(passed(summary, id) for id in asked), "exercises": len(asked),
                        "points": sum(listed[id]["difficulty"] for id in asked if passed(summary, id)),
                        "of_points": sum(listed[id]["difficulty"] for id in asked), "predictions": len(predicted),
                        "measured": sum(each.ratio is not None or each.right is not None for each in predicted)}
    return rows


def by_kind(summary, listed: dict[str, dict]) -> dict[str, dict]:
    from ...course.learner.remembered.summary import KINDS, kind_of

    of_kind = {kind: [id for id, each in listed.items() if kind_of(each["title"]) == kind] for kind in KINDS}
    return {kind: {"passed": sum(passed(summary, id) for id in ids), "tried": sum(id in summary.checked for id in ids), "exercises": len(ids)}
            for kind, ids in of_kind.items()}


def kind_lines(summary, listed: dict[str, dict]) -> list[str]:
    rows = [[kind, f"{each['passed']}", f"{each['tried']}", f"{each['exercises']}"] for kind, each in by_kind(summary, listed).items()]
    return table([["kind of exercise", "passed", "tried", "there are"], *rows], "<>>>")


def written_lines(summary, listed: dict[str, dict]) -> list[str]:
    """What was written in the chapters themselves, and is no exercise of a set."""
    written = [id for id in summary.checked if id not in listed]
    return ["", f"written in chapters: {sum(passed(summary, id) for id in written)} of {len(written)} tried passed"] if written else []


def judged_lines(summary) -> list[str]:
    right = [each.right for each in summary.predicted.values() if each.right is not None]
    return [f"Of the predictions that are no numbers {sum(right)} of {len(right)} were right."] if right else []


def passed(summary, id: str) -> bool:
    return id in summary.checked and summary.checked[id].passed


def as_data(summary, listed: dict[str, dict], folder: Path, picture: Path | None) -> dict:
    """For JSON."""
    return {"folder": str(folder), "chapters": by_chapter(summary, listed), "kinds": by_kind(summary, listed),
            "checked": dicts(summary.checked.items()), "predictions": dicts(summary.predicted.items()),
            "picture": picture and str(picture)}


def dicts(items: Iterable[tuple]) -> dict[str, dict]:
    return {id: vars(each) for id, each in items}
