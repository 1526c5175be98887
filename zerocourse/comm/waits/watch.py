"""The watcher, a thread that reports a collective which takes long, and answers other ranks that wait.

When a wait has lasted `NOTICE_SECONDS`, a line on stderr says what it waits for, since when, and where the other ranks
are; another follows every `REPEAT_SECONDS`. To know that, the waiting rank's watcher writes a question into the store,
and the watchers of the other ranks answer it, also while their main threads compute. While nobody waits long, a watcher
reads one key of the store every `LOOK_SECONDS`, and a collective costs an entry in a dictionary. A wait that provably can
never end is broken off (see `mutual_waits`).

The waiting thread cannot do this itself. gloo ends a transfer whose wait has reached its time limit, so a wait cannot
be cut into slices. On NCCL the host does not wait for a collective, and NCCL's own watchdog reports those that hang.
"""

import atexit
import json
import socket
import sys
import threading
import time
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from ..torch_private import group_store
from . import mutual_waits
from .progress import CollectiveProgress, known

NOTICE_SECONDS = 10.0  # until a wait says that it waits
REPEAT_SECONDS = 60.0  # until it says so again
LOOK_SECONDS = 2.0  # between two looks of the watcher: it answers within this time
QUICK_SECONDS = 0.05  # the same while a question is open
WAITING_SECONDS = 0.25  # the same while a thread of this rank waits, and between two looks at whether one does
SHORT = timedelta(seconds=2)  # a time limit that comes as soon as a proof


@dataclass(slots=True, eq=False)
class Wait:
    """A thread's wait for one collective. `due`: seconds of waiting after which the next line is printed.

    report, comm: the `DesyncReport` and the `Comm` of the collective.
    question: the key of the question that is open, asked when the wait had lasted `asked` seconds.
    """

    report: Any
    call: str
    comm: Any
    since: float  # on the monotonic clock, as all times here
    due: float | None = None
    question: str = ""
    asked: float = 0.0


waits: dict[int, Wait] = {}  # of this process, by thread
_answered = weakref.WeakKeyDictionary()  # by default group: how many questions this rank has answered
_servers = weakref.WeakKeyDictionary()  # by default group: a connection to its store's server, or None
_wake, _stop = threading.Event(), threading.Event()
_lock = threading.Lock()
_thread: threading.Thread | None = None


def begin(report, call: str, comm) -> None:
    """This thread begins to wait."""
    waits[threading.get_ident()] = Wait(report, call, comm, time.monotonic())


def end() -> None:
    """This thread no longer waits."""
    waits.pop(threading.get_ident(), None)


def start() -> None:
    """Start the watcher of this process. If it already runs, have it look now."""
    global _thread
    with _lock:
        if _thread is None or not _thread.is_alive():  # a fork does not have the thread
            _thread = threading.Thread(target=_run, daemon=True, name="zerocourse-watcher")
            _thread.start()
    _wake.set()


@atexit.register
def _end() -> None:
    """Stop the watcher at exit, because Python must not end while a thread is in a call of the store: it would abort."""
    _stop.set()
    _wake.set()
    if _thread is not None:
        _thread.join(5)  # on a busy machine a call takes its time


def _run() -> None:
    busy, looked = True, 0.0
    while not _stop.is_set():
        now, current = time.monotonic(), list(waits.items())
        is_time = busy or now - looked >= LOOK_SECONDS
        busy = answer_questions() if current or is_time else False
        looked = now if is_time else looked
        for thread, wait in current:
            busy |= _look_at(thread, wait)
            if len(current) == 1 and (is_time or now - wait.since < mutual_waits.LATER_SECONDS):
                _break_off_in_vain(thread, wait)
        busy |= _wake.wait(QUICK_SECONDS if busy else min(LOOK_SECONDS, WAITING_SECONDS))
        _wake.clear()


# -- questions and answers -------------------------------------------------------------------------------------------

def question_store() -> dist.Store:
    """Where the ranks put questions and answers: all ranks of the world read it, whichever group they are in."""
    return dist.PrefixStore("zerocourse", group_store(dist.group.WORLD))


def ask(store: dist.Store, progress: CollectiveProgress) -> str:
    """Ask all members of a Comm's group where they are; returns the key under which they answer."""
    number = store.add("asked", 1)
    store.set(f"question {number}", json.dumps([progress.name, progress.ranks]))
    return f"answer {number}"


def answer_questions() -> bool:
    """Answer what was asked since the last look. Returns whether anything was."""
    with suppress(RuntimeError, ValueError, KeyError, AttributeError):  # the group may be destroyed at any moment
        world = dist.group.WORLD
        if world is None or _answered.get(world) == -1:
            return False
        try:
            if not _server_is_gone(world):
                return _answer(world, question_store())
        except RuntimeError:
            pass
        _answered[world] = -1  # the store ended with the rank that served it: do not try again
    return False


def _server_is_gone(world: dist.ProcessGroup) -> bool:
    """Whether the process that serves the store has ended, as it may when that rank is done before the others. Then
    torch's client would print a page of C++ on stderr. So we first look at a connection of our own, on which nothing is
    sent and which closes with the server (except in the very moment in which that process ends)."""
    try:
        if world not in _servers:
            store = group_store(world)
            store = getattr(store, "_underlying_non_prefix_store", store)
            is_served = isinstance(store, dist.TCPStore)
            _servers[world] = socket.create_connection((store.host, store.port), timeout=10) if is_served else None
            if is_served:
                _servers[world].setblocking(False)
        return _servers[world] is not None and not _servers[world].recv(1)
    except BlockingIOError:  # nothing to read, so the server is there
        return False
    except OSError:
        return True


def _answer(world: dist.ProcessGroup, store: dist.Store) -> bool:
    if not store.check(["asked"]):
        return False
    last, number = store.add("asked", 0), _answered.get(world, 0)
    busy = number < last
    while number < last and store.check([f"question {number + 1}"]):
        number += 1
        name, ranks = json.loads(store.get(f"question {number}"))
        if world.rank() in ranks:
            store.set(f"answer {number}/{ranks.index(world.rank())}", json.dumps(where_i_am(name)))
    _answered[world] = number
    return busy


def where_i_am(name: str) -> dict:
    """This rank's answer about one Comm: the call it waits in (`here`: a call of that Comm), and what it completed."""
    mine, now = known.get(name), list(waits.values())
    calls = [wait.call for wait in now if wait.report.progress is mine] or [mine.failed] * bool(mine and mine.failed)
    elsewhere = [wait.call for wait in now if wait.report.progress is not mine]
    return {"made": mine is not None, "here": bool(calls), "call": (calls + elsewhere or [""])[0],
            "completed": mine.completed if mine else 0, "last": mine.last if mine else ""}


# -- waits that never end ---------------------------------------------------------------------------------------------

def _break_off_in_vain(thread: int, wait: Wait) -> None:
    """End a wait of which it is proved that nothing else can: it fails, and `DesyncReport.explain` has the sentence."""
    is_message = wait.call.startswith(("send of ", "recv of "))
    if is_message or wait.report.proof or wait.comm.timeout <= SHORT or time.monotonic() - wait.since < mutual_waits.PROVE_SECONDS:
        return
    with suppress(RuntimeError, ValueError, AssertionError):  # the store or the group has ended
        if _server_is_gone(dist.group.WORLD):
            return
        name = wait.report.progress.name if wait.report.is_proved() else mutual_waits.comm_of_peer(wait, thread)
        if name is not None:
            wait.report.prove(wait.call, name)
            wait.comm.disconnect()


# -- notices ---------------------------------------------------------------------------------------------------------

def _look_at(thread: int, wait: Wait) -> bool:
    """When a wait has taken long, ask and then print where all ranks are. Returns whether a question is open."""
    waited = time.monotonic() - wait.since
    if not wait.question and waited < (NOTICE_SECONDS if wait.due is None else wait.due):
        return False
    try:
        if not wait.question:
            wait.question, wait.asked = wait.report.ask(), waited
        answers = wait.report.answers(wait.question)
        if len(answers) < len(wait.report.peers) and waited - wait.asked < LOOK_SECONDS + 1:
            return True
        others = "; ".join(wait.report.where_peers_are(answers))
    except RuntimeError:
        others = "the other ranks cannot be asked: the process that kept the store is gone"
    wait.question, wait.due = "", waited + REPEAT_SECONDS
    if waits.get(thread) is wait:
        since = time.strftime("%H:%M:%S", time.localtime(time.time() - waited))
        sys.stderr.write(f"zerocourse: {wait.report.names[wait.report.rank]} has waited {waited:.3g} s, since {since}, for "
                         f"{wait.call}: {others}\n")
        sys.stderr.flush()
    return False
