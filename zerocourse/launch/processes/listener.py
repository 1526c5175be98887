"""The parent's end of the connections to its ranks, read as lines without ever waiting for the rest of one.

Each rank opens two (`connection`): events (JSON lines, both ways) and output (raw bytes). The first line of each names
the rank and carries the job's token.
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
    """Cuts a stream of chunks into lines, and a line of more than `longest` bytes into several."""

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


class Listener:
    """Accepts the ranks' connections. `on_hello(rank, hello)`, `on_event(rank, event)`, `on_output(rank, text)` and
    `on_disconnect(rank)` are called from `poll`, in the caller's thread."""

    def __init__(self, folder: Path, on_hello, on_event, on_output, on_disconnect):
        self.token, self.connections, self._outputs = secrets.token_hex(16), {}, {}  # events and output, by rank
        self.on_hello, self.on_event, self.on_output, self.on_disconnect = on_hello, on_event, on_output, on_disconnect
        self._selector = selectors.DefaultSelector()
        server, self.address = _listen(folder)
        self._selector.register(server, selectors.EVENT_READ, self._accept)

    def send(self, message: dict) -> None:
        """Send a message to every rank that is connected."""
        line = json.dumps(message).encode() + b"\n"
        for connection in self.connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(line)

    def poll(self, timeout: float) -> bool:
        """Wait for messages for at most `timeout` seconds, and handle them. Returns whether there were any."""
        ready = self._selector.select(timeout)
        for key, _ in ready:
            key.data(key.fileobj)
        return bool(ready)

    def drain(self) -> None:
        """Handle everything that was received, and also a last line without its newline.

        Everything that a rank printed before it sent "done" is received before "done".
        """
        while self.poll(0):
            pass
        for rank, lines in self._outputs.items():
            self._handle_output(rank, lines.feed(b""))

    def close(self) -> None:
        """Close every connection."""
        for key in list(self._selector.get_map().values()):
            self._drop(key.fileobj)
        self._selector.close()

    def _accept(self, server) -> None:
        connection, _ = server.accept()
        self._selector.register(connection, selectors.EVENT_READ, self._identify)

    def _identify(self, connection) -> None:
        """Read the first line; a connection without the token is closed."""
        connection.settimeout(5)  # for 100 bytes that a rank sends as soon as it connects
        with contextlib.suppress(OSError, ValueError, KeyError):
            hello = json.loads(_read_line(connection))
            if secrets.compare_digest(hello["token"], self.token):
                rank, events = hello["rank"], hello["use"] == "events"
                connection.settimeout(None)
                if events:
                    self.connections[rank], lines = connection, Lines()
                    self.on_hello(rank, hello)
                else:
                    lines = self._outputs[rank] = Lines(LONGEST_PIECE)
                handle = self._handle_events if events else self._handle_output
                read = functools.partial(self._read, rank, lines, handle)
                self._selector.modify(connection, selectors.EVENT_READ, read)
                return
        self._drop(connection)

    def _read(self, rank: int, lines: Lines, handle, connection) -> None:
        try:
            chunk = connection.recv(1 << 16)
        except OSError:
            chunk = b""
        handle(rank, lines.feed(chunk))
        if not chunk:
            self._drop(connection)
            if self.connections.get(rank) is connection:
                del self.connections[rank]
                self.on_disconnect(rank)

    def _handle_events(self, rank: int, lines: list[bytes]) -> None:
        for line in lines:
            with contextlib.suppress(ValueError):  # half a line of a rank that was killed meanwhile
                self.on_event(rank, json.loads(line))

    def _handle_output(self, rank: int, lines: list[bytes]) -> None:
        for line in lines:
            # What a progress bar overwrote with carriage returns was never meant to be kept.
            self.on_output(rank, line.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2])

    def _drop(self, connection) -> None:
        self._selector.unregister(connection)
        connection.close()


def free_port() -> int:
    """A TCP port of this machine on which nobody listened a moment ago."""
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
