"""A folder of checkpoints on a disk whose power may fail: the operations of a save, what each leaves, and the film of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ...show.film import Film, Frame
from ...show.palette import FAINT
from ...show.pictures import svg

OPERATIONS = {"write": "rank {} writes its file into last.partial", "sync": "the file of rank {} is on the disk now",
              "index": "rank 0 writes the index into last.partial, and syncs it", "aside": "the folder last gets the name last.replaced",
              "rename": "the folder last.partial gets the name last", "sync folder": "the names are on the disk now",
              "delete": "the folder last.replaced is deleted"}
FOLDERS = "last", "last.partial", "last.replaced"
WIDE, HIGH, TOP, FILE = 200.0, 130.0, 34.0, 24.0  # units: a folder, where it begins, a line of a file in it


@dataclass
class Folder:
    """state: "old" or "new".   files: by name, whether it is on the disk."""

    state: str
    files: dict[str, bool] = field(default_factory=dict)

    def whole(self, ranks: int) -> bool:
        return len(self.files) == ranks + 1 and all(self.files.values())


class CommitDisk:
    """`last` is there, whole, and the same ranks save anew. An operation is a tuple: a key of OPERATIONS, and for "write" and
    "sync" the rank. Raises ValueError for one that the disk would refuse."""

    def __init__(self, ranks: int):
        self.ranks = ranks
        self.names = {"last": Folder("old", dict.fromkeys([*map(self.file, range(ranks)), "index"], True))}
        self.certain = True  # are the names on the disk?

    @staticmethod
    def file(rank: int) -> str:
        return f"rank {rank}"

    def do(self, what: str, rank: int = 0) -> None:
        if what in ("aside", "rename"):
            old, new = {"aside": FOLDERS[::2], "rename": FOLDERS[1::-1]}[what]
            if old not in self.names or new in self.names:
                raise ValueError(f"{what}: there is no folder {old}" if old not in self.names else f"{what}: there is a folder {new} already")
            self.names[new], self.certain = self.names.pop(old), False
        elif what == "delete":
            self.names.pop("last.replaced", None)
        elif what == "sync folder":
            self.certain = True
        elif what in OPERATIONS:
            partial = self.names.setdefault("last.partial", Folder("new")) if what != "sync" else self.names.get("last.partial")
            if what == "sync" and (partial is None or self.file(rank) not in partial.files):
                raise ValueError(f"sync: rank {rank} has no file in last.partial")
            partial.files["index" if what == "index" else self.file(rank)] = what != "write"
        else:
            raise ValueError(f"{what!r} is no operation: there are {', '.join(OPERATIONS)}")

    def read(self) -> str:
        """What a run finds after the power has failed: the old state, the new one, a torn one, or nothing.

        It takes `last`; where there is none `last.partial`, if this one has its index; and else `last.replaced`.
        """
        partial = self.names.get("last.partial")
        found = self.names.get("last") or (partial if partial and "index" in partial.files else self.names.get("last.replaced"))
        return "nothing" if found is None or "index" not in found.files else found.state if found.whole(self.ranks) else "torn"


def states_of(order: Sequence[tuple], ranks: int) -> list[str]:
    """What is read when the power fails after 0, 1, 2 ... of the operations."""
    disk = CommitDisk(ranks)
    states = [disk.read()]
    for each in order:
        disk.do(*each)
        states.append(disk.read())
    return states


def commit_film(order: Sequence[tuple], ranks: int) -> Film:
    """A frame before the first operation and one after each of them."""
    disk, words = CommitDisk(ranks), "Nothing of the new checkpoint is there yet"
    frames = []
    for number, each in enumerate([None, *order]):
        if each:
            disk.do(*each)
            words = OPERATIONS[each[0]].format(*each[1:])
        state = disk.read()
        found = {"torn": "finds a torn checkpoint", "nothing": "finds nothing"}.get(state, f"goes on from the {state} state")
        frames.append(Frame(commit_frame(disk), f"{words[0].upper()}{words[1:]}. Whoever starts after a power cut here {found}.",
                            f"Operation {number}"))
    return Film("How a checkpoint takes its place", frames, f"A save of {ranks} ranks in {len(order)} operations, and what a run "
                "finds after a power cut behind each of them.", 1.8)


def commit_frame(disk: CommitDisk) -> svg.Drawing:
    drawing = svg.Drawing(svg.WIDTH, TOP + HIGH + 62)
    for number, name in enumerate(FOLDERS):
        x, folder = number * (WIDE + 20), disk.names.get(name)
        drawing.text(x, TOP - 10, name, bold=True, color="#222222" if folder else FAINT)
        drawing.rect(x, TOP, WIDE, HIGH, fill="white", dashed=folder is None, data={"folder": name, "state": folder.state if folder else "none"})
        for row, (file, synced) in enumerate(folder.files.items() if folder else ()):
            drawing.rect(x + 12, TOP + 10 + row * (FILE + 6), WIDE - 24, FILE, ("padding" if folder.state == "old" else "parameters") if synced
                         else "in flight", file, size=13, data={"file": file, "synced": synced})
    drawing.text(0, TOP + HIGH + 24, "grey: old; blue: new, and on the disk; pink: perhaps still in memory only", size=13, color=FAINT)
    drawing.text(0, TOP + HIGH + 48, f"after a power cut one finds: {disk.read()}", bold=True)
    return drawing
