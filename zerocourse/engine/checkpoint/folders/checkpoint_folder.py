"""Where a checkpoint lies on the disk, and how it gets there whole or not at all. It communicates nothing.

A save writes into `NAME.partial`, a folder beside the place of the checkpoint. When all ranks have written, and the
disk has everything, the index comes last, and the folder is renamed to `NAME`. If the process is killed,

    before the index    `NAME` is what it was, and `NAME.partial` is rubbish, which the next save removes
    after the index     `NAME.partial` is a whole checkpoint, which counts where there is no older `NAME` (`settle`)

An older checkpoint of the same name is moved to `NAME.replaced` first, and is removed last. One process at a time saves
under a name: it holds `NAME.lock` from before it makes the folder until the folder has its name (`folder_lock`).
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ....errors import BadInput
from .folder_lock import FolderLock

INDEX = "index.json"  # a folder with it is a whole checkpoint
PARTIAL, REPLACED, LOCK = ".partial", ".replaced", ".lock"
NUMBERED = re.compile(r"global_step\d+")  # the names that an engine gives checkpoints by itself
LATEST = "latest"  # the file beside the checkpoints that names the last one, as DeepSpeed has it


def beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def is_whole(path: Path) -> bool:
    return (path / INDEX).is_file()


def lock_of(path: Path) -> FolderLock:
    return FolderLock(beside(path, LOCK), "is saving under this name", "save under another one, or when it is done")


@contextmanager
def written_alone(path: Path) -> Iterator[Path]:
    """For one process that writes a whole checkpoint: the folder to write into, until `commit`; removed when it fails."""
    with lock_of(path) as lock:
        lock.take()
        partial = begin(path)
        try:
            yield partial
        except Exception:
            abandon(path)
            raise


def begin(path: Path) -> Path:
    """An empty folder to write the checkpoint into. Only the process that holds the lock may call it."""
    settle(path)
    if path.exists() and not is_whole(path) and (not path.is_dir() or any(path.iterdir())):
        raise BadInput(f"{path} is there and is not a checkpoint of zerocourse: save to another path")
    partial = beside(path, PARTIAL)
    partial.mkdir()
    return partial


def commit(path: Path) -> None:
    """`NAME.partial`, which has its index now, takes the place of `NAME`. Only the process that holds the lock may
    call it."""
    partial, replaced = beside(path, PARTIAL), beside(path, REPLACED)
    sync(partial)
    if path.exists():
        path.rename(replaced)
    partial.rename(path)
    sync(path.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def abandon(path: Path) -> None:
    """Remove what a save that failed has written. The last good checkpoint has its name again. Only the process that
    holds the lock may call it, when no rank writes any more."""
    partial, replaced = beside(path, PARTIAL), beside(path, REPLACED)
    if not path.exists() and is_whole(replaced):
        replaced.rename(path)
    if partial.exists():
        (partial / INDEX).unlink(missing_ok=True)  # so that half of it is never taken for a whole checkpoint
        shutil.rmtree(partial, ignore_errors=True)


def settle(path: Path) -> None:
    """Finish what a killed save left: rename what is whole, remove what is not. Only the process that holds the lock may
    call it."""
    whole = to_read(path)
    if whole is not None and whole != path:
        if path.exists():
            path.rmdir()  # an empty folder
        whole.rename(path)
        sync(path.parent)
    for ending in (PARTIAL, REPLACED):
        if beside(path, ending).exists():
            shutil.rmtree(beside(path, ending))


def to_read(path: Path) -> Path | None:
    """The folder that holds the last good checkpoint of this name, or None."""
    return next((each for each in (path, beside(path, PARTIAL), beside(path, REPLACED)) if is_whole(each)), None)


def must_read(path: Path) -> Path:
    """The same. Raises BadInput that says what there is instead."""
    whole = to_read(path)
    if whole is not None:
        return whole
    if beside(path, PARTIAL).exists():
        why = f"{beside(path, PARTIAL).name} is what a save that never ended has left, and holds no checkpoint"
    elif is_whole(path.parent / path.name / latest(path)) if latest(path) else False:
        why = f"it is a folder of checkpoints, the last of which is {path / latest(path)}"
    elif any(path.glob("*_model_states.pt")):
        why = f"it is one of DeepSpeed's, of which `zerocourse checkpoint convert {path} OUT --to zerocourse` makes one"
    elif path.exists():
        why = f"it has no {INDEX}, which every checkpoint of zerocourse has"
    else:
        why = "there is no such folder"
    there = all_in(path.parent)
    raise BadInput(f"{path} is not a checkpoint: {why}; whole ones beside it: {', '.join(there) or 'none'}")


def all_in(folder: Path) -> list[str]:
    """The names of the whole checkpoints in a folder, the oldest first."""
    names = {each.name.removesuffix(PARTIAL).removesuffix(REPLACED) for each in folder.glob("*/") if is_whole(each)}
    return sorted(names, key=lambda name: ((to_read(folder / name) / INDEX).stat().st_mtime_ns, name))


def keep_last(folder: Path, count: int) -> None:
    """Remove the checkpoints `global_stepN` of a folder, except the last `count` of them and the one that `latest` names.

    One process alone may call it, while nothing is written there. A removal that is killed leaves a whole checkpoint, or
    rubbish that the next call removes: the folder loses its name before it loses its files.
    """
    numbered = [name for name in all_in(folder) if NUMBERED.fullmatch(name)]
    for name in set(numbered[:-count]) - {latest(folder)}:
        whole, partial = to_read(folder / name), beside(folder / name, PARTIAL)
        if whole != partial:
            whole.rename(partial)
        (partial / INDEX).unlink()
    for name in torn_in(folder):
        if NUMBERED.fullmatch(name.removesuffix(PARTIAL)):
            shutil.rmtree(folder / name, ignore_errors=True)  # what cannot be removed must not end a training


def torn_in(folder: Path) -> list[str]:
    """The names of folders that killed saves left and that hold no checkpoint."""
    return sorted(each.name for each in folder.glob(f"*{PARTIAL}/") if not is_whole(each))


def latest(folder: Path) -> str | None:
    """The name of the last checkpoint in a folder; None when nothing says so."""
    try:
        return (folder / LATEST).read_text().strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise BadInput(f"{folder / LATEST} is damaged, and names no checkpoint: write the name of one into it") from error


def set_latest(folder: Path, name: str) -> None:
    write_whole(folder / LATEST, name)


def write_whole(file: Path, text: str) -> None:
    """The file has the old text or the new one, and never a part of it."""
    draft = file.with_name(file.name + ".draft")
    with draft.open("w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
    sync(file.parent)


def sync(folder: Path) -> None:
    """Names in the folder survive a loss of power from now on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
