"""A bug of the museum: a few places in the package's own source, and what they become as long as it is planted.

What a reader is shown is what runs: the changes are made in the source of a function, and the function gets the code that
comes of it. So everybody who holds the function has the bug, also a stage that was made before.
"""

import linecache
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches, unified_diff
from types import CodeType, FunctionType

from ...errors import BadInput
from ..show import Shown
from ..show.cells import sources
from .breaks import Break, function_after
from .scene import Scene

CONTEXT = 2  # lines around a change that are shown
ISSUE = re.compile(r"([\w-]+)#(\d+)")
REPOSITORIES = {"DeepSpeed": "deepspeedai/DeepSpeed", "pytorch": "pytorch/pytorch", "open-instruct": "allenai/open-instruct",
                "cosmos-rl": "nvidia-cosmos/cosmos-rl", "trl": "huggingface/trl", "nano-vllm": "GeeeekExplorer/nano-vllm",
                "Liger": "linkedin/Liger-Kernel"}


@dataclass(frozen=True)
class Bug:
    """One bug.

    name: what `planted` takes.   title: the mistake, in some words.   symptom: what one sees of it first.
    instrument: what tells it from all others.   source: where it happened: "repository#number", or "common".
    changes: what makes it.
    test: a test of the package that goes red, as "file::name" in tests/.
    scene: a training in which it shows.   proof: a function of `proof` that goes red there.
    number: a function of `symptoms`, for what no such training shows.   right: what it gives without the bug. None of all: it hangs.
    """

    name: str
    title: str
    symptom: str
    instrument: str
    source: str
    test: str
    changes: tuple[Break, ...]
    scene: Scene | None = None
    proof: Callable[..., None] | None = None
    number: Callable[[], float] | None = None
    right: float = 0.0

    def line(self) -> Shown:
        """The changed lines, before and after, with two lines around them."""
        text, html = [], []
        for function, before, after in self.sources():
            left, right = before.splitlines(), after.splitlines()
            where = f"{sources.file_of(function)}: {function.__qualname__}"
            text += [where, *list(unified_diff(left, right, n=CONTEXT, lineterm=""))[2:]]
            kept = near(left, right)
            sides = sources.side_by_side(*kept, "as it should be", f"with the bug {self.name!r}")
            html.append(f"<div><code>{where}</code></div>{sides}")
        return Shown("\n".join(text), "".join(html))

    def told(self, head: str, folded: str = "") -> Shown:
        """The mistake, the changed lines, where it happened, with links, and which test kills it."""
        line, happened = self.line(), "we made this one, and it is easily made" if self.source == "common" else self.source
        tail = f"What is wrong: {self.title}. Seen in: {{}}. The test that kills it: tests/{self.test}"
        linked = ISSUE.sub(lambda found: f'<a href="https://github.com/{REPOSITORIES[found[1]]}/issues/{found[2]}">{found[0]}</a>', happened)
        html = f"<p><b>{head}</b></p>{line.html}<p>{tail.format(linked)}</p>"
        return Shown(f"{head}\n{tail.format(happened)}\n\n{line.text}", sources.fold(html, folded))

    def measured(self) -> tuple[float, float]:
        """Its number without the bug, and with it. Collective where the number is."""
        assert self.number is not None, f"{self.name} has no number"
        without = self.number()
        with self.planted():
            return without, self.number()

    def sources(self) -> Iterator[tuple[FunctionType, str, str]]:
        """Each function that is changed, with its source before and after.

        Raises ValueError where a change does not apply.
        """
        of_function = defaultdict(list)
        for change in self.changes:
            of_function[change.function()].append(change)
        for function, changes in of_function.items():
            yield function, *function_after(changes)

    @contextmanager
    def planted(self) -> Iterator["Bug"]:
        """The package has the bug inside of the block, in this process, and has it no more afterwards.

        Raises BadInput where one of the functions has another bug already.
        """
        sources = {function: after for function, _, after in self.sources()}
        for function in sources.keys() & planted_now:
            raise BadInput(f"{function.__qualname__} has a bug already: plant {self.name!r} when that one is out again")
        codes = {function: compiled(function, after, self.name) for function, after in sources.items()}
        before = {function: function.__code__ for function in codes}
        planted_now.update(codes)
        try:
            for function, code in codes.items():
                function.__code__ = code
            yield self
        finally:
            for function, code in before.items():
                function.__code__ = code
            planted_now.difference_update(codes)


def near(left: list[str], right: list[str]) -> tuple[list[str], list[str]]:
    """The lines of two texts from `CONTEXT` lines before their first difference to as many after their last."""
    first = next((at for at, (one, other) in enumerate(zip(left, right)) if one != other), min(len(left), len(right)))
    last = next((at for at, (one, other) in enumerate(zip(left[::-1], right[::-1])) if one != other), 0)
    last = min(last, len(left) - first, len(right) - first)
    start = max(0, first - CONTEXT)
    return tuple(lines[start : len(lines) - max(0, last - CONTEXT)] for lines in (left, right))


def compiled(function: FunctionType, source: str, name: str) -> CodeType:
    """The code of `function` with another source. A traceback through it shows the lines of that source."""
    free = function.__code__.co_freevars  # such as __class__, which super() needs: arguments of a function around it
    text = f"def around({', '.join(free)}):\n" + textwrap.indent(source, "    ")
    file = f"<{function.__qualname__} with the bug {name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    outer = next(code for code in compile(text, file, "exec").co_consts if isinstance(code, CodeType))
    code = next(code for code in outer.co_consts if isinstance(code, CodeType) and code.co_name == function.__name__)
    assert code.co_freevars == free, f"{name} uses other variables from around the function: {code.co_freevars}"
    return code


planted_now: set[FunctionType] = set()  # in this process


class Museum:
    """Bugs by name."""

    def __init__(self, *families: tuple[Bug, ...]):
        self.bugs = {bug.name: bug for family in families for bug in family}

    def __getitem__(self, name: str) -> Bug:
        """Raises BadInput for a bug that the museum does not have."""
        if name not in self.bugs:
            near_by = get_close_matches(str(name), self.bugs, n=1)
            hint = f"did you mean {near_by[0]!r}?" if near_by else f"it has {', '.join(self.bugs)}."
            raise BadInput(f"the museum has no bug {name!r}: {hint}")
        return self.bugs[name]

    def __iter__(self) -> Iterator[Bug]:
        return iter(self.bugs.values())

    def __len__(self) -> int:
        return len(self.bugs)
