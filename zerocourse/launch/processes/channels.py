"""The parent's ears: connections from ranks, read as lines without ever waiting for the rest of one.

Each rank opens two: events (JSON lines, both ways) and output (raw bytes). The first line of a connection says whose
it is, and carries the job's token.
"""

import contextlib
import functools
import json
import secrets
import selectors
import socket
from pathlib import Path

LONGEST_PIECE = 1 << 20  # bytes of output without a newline that are held before they are shown as a line


class Lines:
    """Cuts a stream of chunks into lines; a line longer than `longest` bytes comes in pieces."""

    def __init__(self, longest: int | None = None):
        self.parts, self.size, self.longest = [], 0, longest

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that `chunk` completes; an empty chunk completes what is left."""
        self.parts.append(chunk)
        self.size += len(chunk)
        full = self.longest and self.size > self.longest
        if chunk and b"\n" not in chunk and not full:
            return []
        *lines, rest = b"".join(self.parts).split(b"\n")
        if rest and (not chunk or (self.longest and len(rest) > self.longest)):
            lines, rest = [*lines, rest], b""
        self.parts, self.size = [rest], len(rest)
        return lines


class Inbox:
    """Listens for ranks. `on_hello(rank, hello)`, `on_event(rank, event)`, `on_output(rank, text)`, `on_gone(rank)`
    are called from `pump`, in the caller's thread."""

    def __init__(self, folder: Path, on_hello, on_event, on_output, on_gone):
        self.token, self.channels, self._outputs = secrets.token_hex(16), {}, {}
        self.on_hello, self.on_event, self.on_output, self.on_gone = on_hello, on_event, on_output, on_gone
        self._selector = selectors.DefaultSelector()
        server, self.address = _listen(folder)
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def send(self, message: dict) -> None:
        """Say something to every rank; a rank that is gone hears nothing."""
        line = json.dumps(message).encode() + b"\n"
        for channel in self.channels.values():
            with contextlib.suppress(OSError):
                channel.sendall(line)

    def pump(self, timeout: float) -> bool:
        """Take what has come, waiting at most `timeout` seconds for it; says whether anything had."""
        ready = self._selector.select(timeout)
        for key, _ in ready:
            key.data(key.fileobj)
        return bool(ready)

    def drain(self) -> None:
        """Take all that has come, a last line without its newline too.

        What a rank wrote before it said "done" is here when that is.
        """
        while self.pump(0):
            pass
        for rank, lines in self._outputs.items():
            self._take_output(rank, lines.feed(b""))

    def close(self) -> None:
        """Hang up on everybody."""
        for key in list(self._selector.get_map().values()):
            self._drop(key.fileobj)
        self._selector.close()

    def _accept(self, server) -> None:
        connection, _ = server.accept()
        self._selector.register(connection, selectors.EVENT_READ, self._greet)

    def _greet(self, connection) -> None:
        """Read the first line; who does not know the token is turned away."""
        connection.settimeout(5)  # for 100 bytes that a rank sends as soon as it connects
        with contextlib.suppress(OSError, ValueError, KeyError):
            hello = json.loads(_read_line(connection))
            if secrets.compare_digest(hello["token"], self.token):
                rank, events = hello["rank"], hello["use"] == "events"
                connection.settimeout(None)
                if events:
                    self.channels[rank], lines = connection, Lines()
                    self.on_hello(rank, hello)
                else:
                    lines = self._outputs[rank] = Lines(LONGEST_PIECE)
                take = functools.partial(self._read, rank, lines, self._take_events if events else self._take_output)
                self._selector.modify(connection, selectors.EVENT_READ, take)
                return
        self._drop(connection)

    def _read(self, rank: int, lines: Lines, take, connection) -> None:
        try:
            chunk = connection.recv(1 << 16)
        except OSError:
            chunk = b""
        take(rank, lines.feed(chunk))
        if not chunk:
            self._drop(connection)
            if self.channels.get(rank) is connection:
                del self.channels[rank]
                self.on_gone(rank)

    def _take_events(self, rank: int, lines: list[bytes]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):  # half a line of a rank that was killed while it spoke
                self.on_event(rank, json.loads(line))

    def _take_output(self, rank: int, lines: list[bytes]) -> None:
        for line in lines:
            # What a progress bar overwrote with carriage returns was never meant to be kept.
            self.on_output(rank, line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2])

    def _drop(self, connection) -> None:
        self._selector.unregister(connection)
        connection.close()


def free_port() -> int:
    """A TCP port of this machine that nobody listened on a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _listen(folder: Path):
    """A listening socket and its address: a path in `folder`, or a port on loopback where the path cannot be had."""
    path = str(folder / "s")
    if hasattr(socket, "AF_UNIX") and len(path.encode()) < 100:  # the kernel's limit is 108 bytes, 104 on macOS
        server, address = socket.socket(socket.AF_UNIX), path
        server.bind(path)
    else:
        server = socket.socket()
        server.bind(("127.0.0.1", 0))
        address = server.getsockname()[1]
    server.listen(128)
    return server, address


def _read_line(connection) -> bytes:
    """One line, and not a byte of what follows it."""
    line = b""
    while not line.endswith(b"\n") and len(line) < 1000:
        if not (byte := connection.recv(1)):
            break
        line += byte
    return line
