"""The commands of `python -m zerocourse`, one file each, `NAME_command.py`, here or in a room inside.

A command is a module with three things: `HELP` (one line), `configure(parser)` (its arguments) and
`run(args) -> Outcome`. It prints nothing on stdout while it runs (progress goes to stderr); what it has to
say is its outcome, which `zerocourse.cli` prints as text, or as one JSON object with `--json`; `run` alone shows there what
the user's script prints. All of its arguments are checked before any work begins: `arguments` has what is checked alike,
`estimates` what a run would take.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """The outcome of a command."""

    text: str  # for people, printed on stdout
    data: dict = field(default_factory=dict)  # for programs, printed on stdout instead with --json
    ok: bool = True  # False: it ran, and what it checked failed (exit status 1)
    verbatim: bool = False  # the text is not for reading alone: printed as it is, however wide
    said_by_another: bool = False  # under torchrun rank 0 prints it, and this rank prints nothing
