"""What ranks tell each other through the store when a collective takes long or fails: where each is, and why one left.

While all goes well nothing is written, so it costs a step nothing. A rank that waits asks a question, and the watcher
of every other rank (see `watch`) answers it, also while that rank computes. Everything here is about one Comm.
"""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from ...errors import CollectiveError, OutOfMemory
from ..torch_private import group_store
from . import watch
from .progress import CollectiveProgress

COMPARE_SECONDS = 5.0  # seconds that a rank whose collective failed waits for the answers of the others: a watcher looks every
# two seconds, and on a busy machine it takes its time
ELSEWHERE_SECONDS = 3.0  # seconds that it waits for a peer that itself waits, in another Comm, to say for whom: that is the cause
PROOF_SECONDS = 2.0  # seconds that a rank with the proof that it waits in vain waits for the answers of the others
HEARD_SECONDS = 1.0  # seconds that a leaving rank waits for the others to read why: its process may serve the store
READ_SECONDS = 10.0  # seconds that rank 0 waits for the others to read objects, for the same reason
ORDER = "Every rank must issue the same collectives in the same order"
MATCH = ("A send ends when its peer receives the same unit and size, and ranks that all send before they receive, or receive "
         "before they send, wait for each other")


class DesyncReport:
    """One rank's access to what the ranks of one Comm tell each other. names: of its ranks, as sentences say them."""

    def __init__(self, group: dist.ProcessGroup, rank: int, progress: CollectiveProgress, names: Sequence[str] | None = None):
        self.rank, self.progress = rank, progress
        self.names = names or [f"rank {rank}" for rank in range(len(progress.ranks))]
        self.peers = [peer for peer in range(len(progress.ranks)) if peer != rank]
        self.written: list[str] = []  # this rank's keys of the last exchange of objects
        self.proof = ""  # the sentence about a wait that can never end, where it is proved
        # References of our own: the store must outlive the process group, which a rank that leaves destroys.
        store = group_store(group)
        self.store, self.questions = dist.PrefixStore(f"zerocourse {progress.name}", store), watch.question_store()
        with suppress(RuntimeError):  # a fake group's store keeps nothing
            self.store.set(f"made/{rank}", "")

    # -- a wait that takes long ---------------------------------------------------------------------------------------

    def ask(self) -> str:
        """Ask all ranks where they are; returns the question's key."""
        return watch.ask(self.questions, self.progress)

    def answers(self, question: str) -> dict[int, dict]:
        """What the peers have answered so far, by rank (see `watch.where_i_am`)."""
        keys = {peer: f"{question}/{peer}" for peer in self.peers}
        return {peer: json.loads(self.questions.get(key)) for peer, key in keys.items() if self.questions.check([key])}

    def where_peers_are(self, answers: dict[int, dict], verb: str = "is", gone: bool = False) -> list[str]:
        """A clause for each peer. verb: "is" or "was".   gone: a connection broke, so a silent peer is gone."""
        return [self._where(peer, answers.get(peer), verb, gone) for peer in self.peers]

    def _where(self, peer: int, answer: dict | None, verb: str, gone: bool) -> str:
        if not (answer and answer["made"]) and not self.store.check([f"made/{peer}"]):
            return f"{self.names[peer]} has not made this Comm, which every rank of its group must make"
        if answer is None:
            return f"{self.names[peer]} did not answer: its process is gone{'' if gone else ', or stands still'}"
        if answer["call"]:
            return f"{self.names[peer]} {verb} in {answer['call']}{'' if answer['here'] else ' of another Comm'}"
        count, last = answer["completed"], answer["last"]
        done = f"completed {count}, the last was {last}" if last else "has completed none"
        return (f"{self.names[peer]} {verb} in no collective (it {done}): it may have ended its loop earlier, "
                "or still computes")

    # -- a wait that can never end ------------------------------------------------------------------------------------

    def is_proved(self) -> bool:
        """Has a rank written a proof down?"""
        return self.questions.check([f"proof {self.progress.name}"])

    def prove(self, call: str, of_peer: str) -> None:
        """It is proved that this rank waits in vain (see `mutual_waits`): write down where each rank is, for those of this Comm
        and of the one in which the peer waits, which has this name."""
        if not self.is_proved():
            question, until = self.ask(), time.monotonic() + PROOF_SECONDS
            while len(answers := self.answers(question)) < len(self.peers) and time.monotonic() < until:
                watch.answer_questions()  # the others may ask at the same time
                time.sleep(0.01)
            where = {self.rank: f"{self.names[self.rank]} was in {call}"}
            where |= {peer: self._where(peer, answer, "was", gone=False) for peer, answer in answers.items()}
            for name in {self.progress.name, of_peer}:
                self.questions.set(f"proof {name}", "a collective can never complete: " + "; ".join(where[rank] for rank in sorted(where))
                                   + f". {ORDER}, so all must run the same units of a model")
        self.proof = self._get_proof()

    def _get_proof(self) -> str:
        return self.questions.get(f"proof {self.progress.name}").decode()

    # -- a collective that failed -------------------------------------------------------------------------------------

    def explain(self, call: str, error: Exception, timeout: timedelta) -> CollectiveError | OutOfMemory:
        """The error for a failed call. Its sentence names the call, and says where the other ranks say they were.

        Where another rank ran out of memory, that is this one's error too.
        """
        self.progress.failed = call
        late = "timed out" in str(error).lower()  # gloo's words; any other failure is a connection that broke
        is_message = call.startswith(("send of ", "recv of "))
        kind = "a message" if is_message else "a collective"
        what = f"did not complete within {timeout.total_seconds():g} s" if late else "broke off"
        try:
            self.store.set(f"failed/{self.rank}", call)
            if self.is_proved():
                return CollectiveError(self._get_proof())
            answers = self._collect_answers(self.ask())
            if self.somebody_left:
                return self._left(call)
            peers = self.where_peers_are(answers, "was", gone=not late)
        except RuntimeError:
            return CollectiveError(f"{kind} {what}: {self.names[self.rank]} was in {call}, and the other ranks could "
                                   "not be asked, because the process that kept the store is gone")
        ranks = sorted([(self.rank, f"{self.names[self.rank]} was in {call}"), *zip(self.peers, peers, strict=True)])
        calls = {(call, True), *((answer["call"], answer["here"]) for answer in answers.values() if answer["call"])}
        all_waited = len(answers) == len(self.peers) and all(answer["call"] for answer in answers.values())
        rule = f". {MATCH}" if is_message else f". {ORDER}" if len(calls) > 1 else \
            ". They disagree on its layout, or the time was too short" if all_waited else ""
        return CollectiveError(f"{kind} {what}: {'; '.join(clause for _, clause in ranks)}{rule}")

    def _collect_answers(self, question: str) -> dict[int, dict]:
        """The answers that come in time; a peer that waits in another Comm has time to say why. Returns at once when a rank has left."""
        began = time.monotonic()
        while True:
            answers = self.answers(question)
            for peer in self.peers:  # other ranks write down what failed, because they may be gone by now
                if peer not in answers and self.store.check([f"failed/{peer}"]):
                    answers[peer] = {"made": True, "here": True, "call": self._get(f"failed/{peer}")}
            are_elsewhere = bool(answers) and all(answer["call"] and not answer["here"] for answer in answers.values())
            enough = ELSEWHERE_SECONDS if are_elsewhere else 0.0
            waited = time.monotonic() - began
            if len(answers) == len(self.peers) and waited > enough or self.somebody_left or waited > COMPARE_SECONDS:
                return answers
            time.sleep(0.02)

    # -- a rank that leaves -------------------------------------------------------------------------------------------

    def tell(self, reason: str | Exception) -> None:
        """Write down why this rank leaves, for ranks that will wait for it in vain. Only the first reason is kept."""
        out_of_memory = isinstance(reason, OutOfMemory)  # whose sentence names the rank itself
        said = [out_of_memory, f"{'' if out_of_memory else f'{self.names[self.rank]}: '}{reason}"]
        with suppress(RuntimeError, ValueError):  # the store is gone, so nobody can read it
            self.store.compare_set("left", "", json.dumps(said))
            self.store.set(f"heard/{self.rank}", "")

    def _left(self, call: str) -> CollectiveError | OutOfMemory:
        out_of_memory, reason = json.loads(self._get("left"))
        self.store.set(f"heard/{self.rank}", "")  # written after reading: now the rank that left may end the store
        stopped = f"{self.names[self.rank]} stopped in {call}, because another rank left: {reason}"
        return OutOfMemory(stopped) if out_of_memory else CollectiveError(stopped)

    def heard(self) -> bool:
        """Whether all peers have read why."""
        with suppress(RuntimeError):
            return self.store.check([f"heard/{peer}" for peer in self.peers])
        return True  # the store is gone, and so are the peers

    @property
    def somebody_left(self) -> bool:
        return self.store.check(["left"])

    # -- objects ------------------------------------------------------------------------------------------------------

    def exchange(self, call: str, value: object, timeout: timedelta, meet: Callable[[], None]) -> list:
        """Every rank's `value`, in rank order. Raises RuntimeError when the time is up or a rank has left.

        meet: waits, where that is possible, until all ranks have written theirs, and raises when one of them is gone.
        """
        keys = [f"{call}/{rank}" for rank in range(len(self.peers) + 1)]
        self.store.set(keys[self.rank], json.dumps(value))
        meet()
        until, pause = time.monotonic() + timeout.total_seconds(), 0.001
        while not self.store.check(keys):
            if time.monotonic() >= until or self.proof or self.somebody_left:
                raise RuntimeError("timed out")
            time.sleep(pause)  # the store's own wait prints warnings when its time is up
            pause = min(0.05, 2 * pause)
        values = [json.loads(value) for value in self._get_all(keys)]
        self._let_read(f"{call}/read")
        with suppress(RuntimeError):  # the store is gone
            for key in self.written:  # all ranks are in this exchange, so each has read what it needs of the last one
                self.store.delete_key(key)
        self.written = [keys[self.rank]] + [f"{call}/read"] * (self.rank == 0)
        return values

    def _let_read(self, count: str) -> None:
        """Rank 0 may keep the store in its own process: it must not return, and end it, before the others have read.
        One that is killed meanwhile never will, so it waits for seconds at most."""
        with suppress(RuntimeError):  # the store is gone: another rank kept it, which has been waiting for this one
            readers, until = self.store.add(count, 1), time.monotonic() + READ_SECONDS
            while dist.get_rank() == 0 and readers <= len(self.peers) and time.monotonic() < until and not self.somebody_left:
                time.sleep(0.001)
                readers = self.store.add(count, 0)

    def _get(self, key: str) -> str:
        return self.store.get(key).decode()

    def _get_all(self, keys: list[str]) -> list[bytes]:
        """In one request, where the store knows that: N ranks that ask for N keys one by one would wait N times."""
        return self.store.multi_get(keys) if self.store.has_extended_api() else list(map(self.store.get, keys))
