"""The sentences of checks, which stand in catalogues by language and not in the code.

`sentences.en.toml` lies beside the functions of which it speaks, and has a table for each, by name: for an exercise's
reference what is said to each mistake and to a right answer, for an observer the words of what it sees.
`sentences.zh-CN.toml` is a translation; what it lacks is said in English.
"""

import functools
import inspect
import os
import re
import string
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path

VARIABLE = "ZEROCOURSE_LANGUAGE"  # the environment variable that names the language, as in "zh-CN"
FILLED = {"what", "rank", "world", "got", "want", "all"}  # the names in braces that every sentence may have


def sentences(fn: Callable) -> dict[str, str]:
    """What is said of a function, by name, in the language that the environment names; {} of one that has no table."""
    fn = getattr(fn, "func", fn)  # of a partial
    return read(Path(inspect.getfile(fn)).parent, language()).get(fn.__name__, {})


def language() -> str:
    """The language that the environment names, English where it names none: "zh-CN" for zh_CN.UTF-8."""
    return (os.environ.get(VARIABLE) or "en").partition(".")[0].replace("_", "-")


@functools.cache
def read(folder: Path, language: str) -> dict[str, dict[str, str]]:
    """The tables of a folder. Raises ValueError where a translation has a sentence, or a name in braces, that English
    does not have."""
    paths = folder / "sentences.en.toml", *sorted(folder.glob(f"sentences.{language}*.toml"))[:1]  # "zh" is enough for "zh-CN"
    tables, *others = [tomllib.loads(path.read_text("utf-8")) for path in paths if path.exists()] or [{}]
    for name, table in (item for other in others for item in other.items()):
        for code, sentence in table.items():
            if code not in (english := tables.get(name, {})) or not names_in(sentence) <= names_in(english[code]):
                raise ValueError(f"{paths[1].name}: {code!r} of {name} must translate a sentence of sentences.en.toml, and have no other "
                                 "names in braces")
            english[code] = sentence
    return tables


def names_in(sentence: str) -> set[str]:
    """The names in braces of a sentence."""
    return {name for _, name, *_ in string.Formatter().parse(sentence) if name}


def unfilled(fn: Callable, observers: Iterable[Callable]) -> dict[str, str]:
    """{name in braces: the sentence of `fn` in which nothing fills it in}. Filled in are FILLED, the entries of a case,
    and what observers see, which stands in their modules."""
    source = "\n".join(inspect.getsource(inspect.getmodule(getattr(each, "func", each))) for each in observers)
    return {name: code for code, sentence in sentences(fn).items() for name in names_in(sentence) - FILLED
            if not name.isdigit() and not re.search(rf"\b{re.escape(name)}\b", source)}
