"""A slow network on one machine: two network namespaces, each a "node", joined by a cable of limited rate.

Each end of the cable (a veth pair) sends through a token bucket (`tc ... tbf`), so that bytes take time while the
processor is free. Only on such a link can overlap be measured honestly. It needs Linux, root rights, `ip` and `tc`.

    with limited_link(300) as link:                       # Mbit/s, each way
        first, second = link.launch(train, nproc=1)       # a torchrun on each node, which meet at node 0
"""

import ctypes
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from ..errors import BadInput
from .launcher import launch
from .processes.cleanup import end_processes
from .processes.failures import RankError
from .processes.jobs import Results
from .processes.parent import cores, current_parent

DEVICE = "cable0"  # the name of the interface in either namespace
ADDRESSES = ("10.77.0.1", "10.77.0.2")  # visible only inside the two namespaces, so every link can use the same ones
PORT = 29400
CAUSE_SECONDS = 3.0  # seconds that a failed node waits for the other one, whose failure may be the cause
BURST_BYTES = 128 << 10  # bytes sent at once after a pause: more than the largest packet, 64 KiB; about a millisecond
QUEUE_BYTES = 4 << 20  # may wait in the bucket before packets are dropped
NAMESPACES = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_numbers = itertools.count(1)


class Link:
    """Two nodes and the cable between them. `namespaces` are their names, for `ip netns exec NAME command`."""

    def __init__(self, namespaces: tuple[str, str]):
        self.namespaces = namespaces

    def launch(self, target, *args, nproc: int = 1, env=None, **options) -> list[Results]:
        """`launch` on both nodes at once, with `nproc` ranks on each; what each node returned, node 0 first.

        Takes what `launch` takes (see there), and raises what it raises, a rank's own error before its peers'.
        Torchrun numbers the ranks, and not always node 0 first: ask each for its rank.
        """
        current_parent()  # starts the cleanup process, which inside a namespace would end with it

        def on_node(node: int) -> Results:
            # Torchrun gives others its host's name, and the two nodes share theirs: PET_LOCAL_ADDR is its --local-addr.
            here = {"GLOO_SOCKET_IFNAME": DEVICE, "NCCL_SOCKET_IFNAME": DEVICE, "PET_LOCAL_ADDR": ADDRESSES[node],
                    "OMP_NUM_THREADS": str(max(1, cores() // (2 * nproc)))}  # each node would take all cores
            with inside(self.namespaces[node]):
                return launch(target, *args, nproc=nproc, env=here | (env or {}), nnodes=2, node_rank=node,
                              rdzv_endpoint=f"{ADDRESSES[0]}:{PORT}", progress=node == 0, **options)

        with ThreadPoolExecutor(2) as threads:
            nodes = [threads.submit(on_node, node) for node in range(2)]
            try:
                ended, _ = wait(nodes, return_when="FIRST_EXCEPTION")
                if any(node.exception() for node in ended):
                    # A rank that fails closes its connections, and its peer's node may report that sooner than its own.
                    ended, _ = wait(nodes, timeout=CAUSE_SECONDS)
                    raise min((node.exception() for node in ended if node.exception()), key=broke_off)
                return [node.result() for node in nodes]
            except BaseException:
                self.end_processes()  # the other node may wait forever; its launch returns when its torchrun has ended
                raise

    def set_rate(self, rate_mbit: float | None) -> None:
        """Limit each direction to `rate_mbit` · 10⁶ bits per second; None removes the limit."""
        for namespace in self.namespaces:
            _tc(rate_mbit, ["-n", namespace])

    def sent_bytes(self) -> list[int]:
        """What each node's end of the cable has sent since it was made, headers of packets included."""
        stats = [json.loads(_run("ip", "-n", name, "-j", "-s", "link", "show", DEVICE)) for name in self.namespaces]
        return [stat[0]["stats64"]["tx"]["bytes"] for stat in stats]

    def processes(self) -> list[int]:
        """Ids of the processes that live on either node."""
        return [int(pid) for name in self.namespaces for pid in _run("ip", "netns", "pids", name).split()]

    def end_processes(self) -> None:
        end_processes(self.processes)


@contextmanager
def limited_link(rate_mbit: float | None) -> Iterator[Link]:
    """Two nodes joined by a cable of `rate_mbit` · 10⁶ bits per second each way (None: without a limit).

    Nothing is left behind: processes on the nodes are ended and the nodes removed. The next link removes the nodes of a
    process that was killed. Raises BadInput for an impossible rate, and where the system does not permit a link.
    """
    if rate_mbit is not None and not rate_mbit > 0:
        raise BadInput(f"rate_mbit is {rate_mbit!r}: it is a rate in Mbit/s, above 0, or None for no limit")
    _check_system()
    remove_stale()
    number = next(_numbers)
    link = Link((f"zc-{os.getpid()}-{number}a", f"zc-{os.getpid()}-{number}b"))
    try:
        for name in link.namespaces:
            _run("ip", "netns", "add", name)
        first, second = link.namespaces
        _run("ip", "link", "add", DEVICE, "netns", first, "type", "veth", "peer", "name", DEVICE, "netns", second)
        for name, address in zip(link.namespaces, ADDRESSES, strict=True):
            _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", DEVICE)
            _run("ip", "-n", name, "link", "set", "lo", "up")
            _run("ip", "-n", name, "link", "set", DEVICE, "up")
        link.set_rate(rate_mbit)
        yield link
    finally:
        _remove(link.namespaces)


def broke_off(error: BaseException) -> bool:
    """Whether the error only says that the other side has closed the connection."""
    return isinstance(error, RankError) and error.failures[0].broke_off


def why_not() -> str | None:
    """The sentence that says why this machine cannot have a limited link, or None if it can."""
    try:
        with limited_link(1000):
            return None
    except BadInput as error:
        return str(error)


def limit_here(rate_mbit: float | None, burst_bytes: int = BURST_BYTES) -> None:
    """Called on a node by one of its processes: change the limit of what this node sends.

    burst_bytes: sent at once after a pause. Where it is less than usual, packets become smaller too, so that one fits.
    """
    if burst_bytes < BURST_BYTES:
        _run("ip", "link", "set", "dev", DEVICE, "gso_max_size", str(burst_bytes // 2))
    _tc(rate_mbit, [], burst_bytes)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Move the calling thread, and every process it starts, into the namespace. Other threads stay where they are."""
    with open("/proc/thread-self/ns/net") as before, open(NAMESPACES / namespace) as there:
        _enter(there)
        try:
            yield
        finally:
            _enter(before)


def remove_stale() -> list[str]:
    """Remove the nodes of processes that were killed and could not do it themselves. Returns the nodes' names."""
    stale = [path.name for path in NAMESPACES.glob("zc-*-*") if not _alive(path.name.split("-")[1])]
    _remove(stale)
    return stale


def _remove(namespaces) -> None:
    """End what runs there and remove each namespace, which removes its end of the cable too."""
    there = [name for name in namespaces if (NAMESPACES / name).exists()]
    end_processes(Link(there).processes)
    for name in there:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)  # another process may have done it


def _alive(pid: str) -> bool:
    return not pid.isdigit() or os.path.exists(f"/proc/{pid}")


def _check_system() -> None:
    if sys.platform != "linux":
        raise BadInput("a limited link needs Linux, whose network namespaces it is made of")
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise BadInput(f"a limited link needs the program {' and '.join(missing)}: install the package iproute2")
    if os.geteuid():
        raise BadInput(f"a limited link needs root, to make network namespaces, and this is user {os.geteuid()}")


def _enter(namespace) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
    if libc.setns(namespace.fileno(), _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter the network namespace {namespace.name}")


def _tc(rate_mbit: float | None, where: list[str], burst_bytes: int = BURST_BYTES) -> None:
    if rate_mbit is None:
        subprocess.run(["tc", *where, "qdisc", "delete", "dev", DEVICE, "root"], capture_output=True)  # if there is one
    else:
        _run("tc", *where, "qdisc", "replace", "dev", DEVICE, "root", "tbf", "rate", f"{rate_mbit * 1e6:.0f}bit",
             "burst", str(burst_bytes), "limit", str(QUEUE_BYTES))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise BadInput(f"this system does not permit a limited link: `{' '.join(command)}` said {said!r}")
    return done.stdout
