"""Puts copies of the course into a learner's folder, renews them, and gives a chapter back. What the learner has touched stays.

A file is touched when its cells or outputs are not those that were written there; the manifest knows. A newer version of a
touched file is put beside it, as `newer_05_zero1.ipynb`. When a chapter is given back, the learner's version stays beside it, as
`mine_05_zero1.ipynb`. Neither name begins with the number of a chapter, so that nothing takes these files for the chapter's.
"""

import itertools
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from ...errors import BadInput
from .folder import MARK
from .manifest import FILE, Manifest, fingerprint, fingerprint_of, read_manifest
from .originals import copies_of_all

NEWER, MINE = "newer", "mine"
TUTOR = "AGENTS.md"


@dataclass
class Handout:
    """What was done, by the places of the files in the folder."""

    folder: Path
    written: list[str] = field(default_factory=list)  # where nothing was
    renewed: list[str] = field(default_factory=list)  # in the place of an older version that the learner had not touched
    removed: list[str] = field(default_factory=list)  # of chapters that are no more, and that the learner had not touched
    kept: dict[str, str] = field(default_factory=dict)  # touched, and where the newer one is that was put beside it
    set_aside: dict[str, str] = field(default_factory=dict)  # given back, and where the learner's version is now
    older: list[str] = field(default_factory=list)  # of these there is a newer version, and nobody has asked for it


class Changes:
    """What is to be written, moved and removed: done all at once, so that a disk that is full leaves everything as it was."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.texts: dict[str, str] = {}
        self.moves: dict[str, str] = {}
        self.removals: list[str] = []

    def make(self) -> None:
        """Raises OSError; then nothing has changed, and no folder is left that was not there."""
        drafts, made = {}, []
        try:
            for name, text in self.texts.items():
                target = self.folder / name
                for missing in [each for each in (target.parent, *target.parent.parents) if not each.exists()][::-1]:
                    missing.mkdir()
                    made.append(missing)
                drafts[target] = target.with_name(f".{target.name}.{os.getpid()}.part")
                drafts[target].write_text(text, "utf-8")
        except BaseException:
            for draft in drafts.values():
                draft.unlink(missing_ok=True)
            for missing in reversed(made):
                missing.rmdir()
            raise
        for name, aside in self.moves.items():
            (self.folder / name).rename(self.folder / aside)
        for target, draft in drafts.items():
            draft.replace(target)
        for name in self.removals:
            (self.folder / name).unlink()


def hand_out(folder: Path, update: bool = False, ours: bool | None = None) -> Handout:
    """Write the copies that are not there. update: also renew those that the learner has not touched, and put newer versions
    beside the others.   ours: as in `copies.learners_copy`; None: as before, and True in a new folder.

    Raises BadInput where the folder is none, or holds other things, and OSError where it cannot be written.
    """
    check_folder(folder)
    manifest = read_manifest(folder)
    manifest.ours = manifest.ours if ours is None else ours
    done, changes = Handout(folder), Changes(folder)
    copies = copies_of_all(manifest.ours)
    for name, text in copies.items():
        there, fresh = fingerprint_of(folder / name), fingerprint(text)
        given = {manifest.files.get(name), manifest.offered.get(name)}
        if there == fresh:
            manifest.files[name] = fresh
            _remove_newer(name, changes, manifest)
        elif there is None:
            _write(name, text, done.written, changes, manifest)
        elif there not in given and fresh in given:
            continue  # touched, and there is nothing newer
        elif not update:
            done.older.append(name)
        elif there in given:
            _write(name, text, done.renewed, changes, manifest)
            _remove_newer(name, changes, manifest)
        else:
            beside = _place_beside(name, NEWER, folder, manifest)
            changes.texts[beside], done.kept[name] = text, beside
            manifest.files[beside] = manifest.offered[name] = fresh
    if update:
        for name in [name for name in manifest.files if name not in copies and not _is_newer(name)]:
            if fingerprint_of(folder / name) == manifest.files.pop(name):
                changes.removals.append(name)
                done.removed.append(name)
    return _done(done, changes, manifest)


def reset(folder: Path, chapter: int) -> Handout:
    """Give a chapter and its exercises back as they are new; the learner's versions stay beside them.

    Raises BadInput where the folder is not a learner's, or there is no such chapter.
    """
    if not (folder / MARK).is_dir():
        raise BadInput(f"{folder} is not a learner's folder: make one with `zerocourse course {folder}`")
    manifest = read_manifest(folder)
    copies, done, changes = copies_of_all(manifest.ours), Handout(folder), Changes(folder)
    chosen = {name: text for name, text in copies.items() if number(name) == chapter}
    if not chosen:
        raise BadInput(f"there is no chapter {chapter:02}: the chapters are {', '.join(sorted({f'{number(name):02}' for name in copies}))}")
    for name, text in chosen.items():
        there, fresh = fingerprint_of(folder / name), fingerprint(text)
        if there == fresh:
            continue
        if there not in (None, manifest.files.get(name)):
            changes.moves[name] = done.set_aside[name] = _place_beside(name, MINE, folder, manifest)
        _write(name, text, done.renewed if there else done.written, changes, manifest)
        _remove_newer(name, changes, manifest)
    return _done(done, changes, manifest)


def put_tutor(folder: Path) -> None:
    """What makes tutors of the programs that help in this folder, unless the learner has words of their own there."""
    if not (folder / TUTOR).exists():
        (folder / TUTOR).write_text(Path(__file__).with_name(TUTOR).read_text("utf-8"), "utf-8")


def check_folder(folder: Path) -> None:
    """Raises BadInput where no copies belong."""
    for each in (folder, *folder.absolute().parents):
        if each.exists() and not each.is_dir():
            raise BadInput(f"{each} is a file: name a folder for the course")
        if each != folder and (each / MARK).is_dir():
            raise BadInput(f"{folder} lies inside of a learner's folder, {each}: name that one, or one outside of it")
    others = sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) if folder.exists() else []
    if others and not (folder / MARK).is_dir():
        raise BadInput(f"{folder} holds other things, such as {others[0]}: name a new or an empty folder, or one that `zerocourse course` made")


def number(name: str) -> int:
    """Of the chapter whose file it is, as its name says; -1 where that is not one."""
    match = re.match(r"(\d\d)_", PurePosixPath(name).name)
    return int(match[1]) if match else -1


def _write(name: str, text: str, among: list[str], changes: Changes, manifest: Manifest) -> None:
    changes.texts[name], manifest.files[name] = text, fingerprint(text)
    among.append(name)


def _is_newer(name: str) -> bool:
    return PurePosixPath(name).name.startswith(f"{NEWER}_")


def _beside(name: str, word: str) -> Iterable[str]:
    """newer_05_zero1.ipynb, newer_2_05_zero1.ipynb, ..."""
    path = PurePosixPath(name)
    return (str(path.with_name(f"{word}_{again}{path.name}")) for again in itertools.chain([""], (f"{n}_" for n in itertools.count(2))))


def _place_beside(name: str, word: str, folder: Path, manifest: Manifest) -> str:
    """The first such name that is free, or taken by what nobody has touched."""
    return next(each for each in _beside(name, word) if fingerprint_of(folder / each) in (None, manifest.files.get(each)))


def _remove_newer(name: str, changes: Changes, manifest: Manifest) -> None:
    """The version beside a file that is the newest itself now; not where the learner has touched it."""
    manifest.offered.pop(name, None)
    beside = next(iter(_beside(name, NEWER)))
    if (given := manifest.files.pop(beside, None)) and fingerprint_of(changes.folder / beside) == given:
        changes.removals.append(beside)


def _done(done: Handout, changes: Changes, manifest: Manifest) -> Handout:
    changes.texts[f"{MARK}/{FILE}"] = manifest.text
    changes.make()
    return done
