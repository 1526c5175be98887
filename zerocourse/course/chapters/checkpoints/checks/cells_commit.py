"""The check of 12.w2, which chapter 12 asks for itself: the order of the operations of a save."""

from ....checks import Trial, Wrong, exercise
from ..commit_disk import CommitDisk


def commit_order(ranks):
    """The operations, in order, by which `ranks` ranks save a checkpoint under the name
    `last`, which is taken by the one before. A list of tuples:

    ("write", r)      rank r writes its file into `last.partial`, perhaps into memory only
    ("sync", r)       when it is done, the file of rank r is on the disk
    ("index",)        rank 0 writes the index into `last.partial`, and it is on the disk
    ("aside",)        `last` gets the name `last.replaced`
    ("rename",)       `last.partial` gets the name `last`, which must be free
    ("sync folder",)  when it is done, the names are on the disk
    ("delete",)       `last.replaced` is deleted

    After a power cut a run takes `last`; where there is none it takes `last.partial`, if
    the index is in it, and else `last.replaced`.
    """
    writing = [(what, rank) for what in ("write", "sync") for rank in range(ranks)]
    return [*writing, ("index",), ("aside",), ("rename",), ("sync folder",), ("delete",)]


def every_cut(answer, ranks):
    """What is found after a power cut behind each operation, and at the end."""
    order, disk = [tuple(each) if isinstance(each, (tuple, list)) else (each,) for each in answer(ranks)], CommitDisk(ranks)
    found, partly = [], False
    for each in order:
        try:
            disk.do(*each)
        except (ValueError, TypeError) as error:
            raise Wrong(f"the disk refuses the operation {each}: {error}") from None
        found.append(disk.read())
        new = disk.names.get("last.partial")
        partly |= bool(new) and "index" in new.files and not new.whole(ranks)
    last = disk.names.get("last")
    ranks_there = sorted(file for file in (last.files if last else ()) if file != "index")
    return {"saved": disk.read(), "files": len(ranks_there), "synced": bool(last) and all(last.files.values()),
            "partly": partly, "lost": sorted({each for each in found if each in ("torn", "nothing")}),
            "certain": disk.certain, "left": len(set(disk.names) - {"last"})}


@exercise(
    "12.w2", "The order of a commit", minutes=10, difficulty=2, answer="commit_order", own=commit_order,
    trials=[Trial([(1,), (2,), (3,)], every_cut)],
    mistakes={
        "index first": ({"order": ("index", "write", "sync", "aside", "rename", "sync folder", "delete")},
                        {"order": ("write", "index", "sync", "aside", "rename", "sync folder", "delete")}),
        "not synced": {"order": ("write", "index", "aside", "rename", "sync folder", "delete")},
        "rank 0 alone": {"ranks": lambda ranks: 1},
        "no index": {"order": ("write", "sync", "aside", "rename", "sync folder", "delete")},
        "index last": {"order": ("write", "sync", "aside", "rename", "index", "sync folder", "delete")},
        "names uncertain": ({"order": ("write", "sync", "index", "aside", "rename", "delete")},
                            {"order": ("write", "sync", "index", "sync folder", "aside", "rename", "delete")}),
        "left over": {"order": ("write", "sync", "index", "aside", "rename", "sync folder")},
        "never renamed": {"order": ("write", "sync", "index")},
        "old deleted first": {"order": ("aside", "delete", "write", "sync", "index", "rename", "sync folder")},
    })
def committing(ranks, *, order=("write", "sync", "index", "aside", "rename", "sync folder", "delete"), **changes):
    """All data, then the index, then the names."""
    writers = changes.get("ranks", lambda ranks: ranks)(ranks)
    return [each for what in order for each in ([(what, rank) for rank in range(writers)] if what in ("write", "sync") else [(what,)])]
