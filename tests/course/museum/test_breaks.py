"""A break finds its place whatever it is called and wherever it stands, and says in a sentence when the place is gone."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tools.mutant import ROOT
from zerocourse.course.museum.breaks import Break, drop, file_after
from zerocourse.zero.buffers.buffer import FlatBuffer
from zerocourse.zero.buffers.gradients import GradientBuffer

CODE = '''"""Ä module, in which columns count bytes."""

class Bucket:
    def add(self, key, value):
        if self.open or key in self.late:
            self.sum.add_(value, alpha=1 / self.size)
        else:
            self.sum = value  # mutant: kept
        for each in (key, value):
            self.note(each, "ö", value)  # twice

    @property
    def total(self):
        return self.sum if self.size else f"{self.size + 1}"


def total(values):
    mean, total = 0, 0
    total += 1
    return (mean + 1) * total
'''


@pytest.fixture
def house(tmp_path):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("ROOM = 1\n")
    (tmp_path / "room" / "bucket.py").write_text(CODE)
    return tmp_path


def changed(house, where: str, path: str, new) -> tuple[str, str]:
    """The lines that a break takes away, and those that it brings, without their indentation."""
    _, after = file_after([Break(f"room.bucket{where}", path, new)], house)
    before, after = CODE.splitlines(), after.splitlines()
    return tuple("|".join(line.strip() for line in one if line not in other) for one, other in ((before, after), (after, before)))


@pytest.mark.parametrize("where, path, new, expected", (
    (":Bucket", "if.test", "not {old}", "if not self.open or key in self.late:"),
    (":Bucket", "boolop.values[1]", drop, "if self.open:"),
    (":Bucket.add", "compare", "{left} is {nothing}", "if self.open or (key is {nothing}):"),
    ("", "add_(alpha).alpha", drop, "self.sum.add_(value)"),
    ("", "add_().args", drop, "self.sum.add_(alpha=1 / self.size)"),
    ("", "add_().alpha", "1 + 1", "self.sum.add_(value, alpha=1 + 1)"),
    ("", "add_(alpha).alpha.left", "1 + 1", "self.sum.add_(value, alpha=(1 + 1) / self.size)"),
    ("", "add_()", drop, "pass"),
    ("", "add_() ^if.test", "False", "if False:"),
    ("", "add_()", "first()\n{old}", "first()"),
    (":Bucket.add", "#kept", "self.sum = 0", "self.sum = 0  # mutant: kept"),
    (":Bucket", "for.iter.elts[1]", drop, "for each in (key,):"),
    (":Bucket", "note().args[-1]", drop, 'self.note(each, "ö")  # twice'),
    (":Bucket", "note().args[0]", drop, 'self.note("ö", value)  # twice'),
    (":Bucket.total", "return.value", "{body}", "return self.sum"),
    (":total", "mean=.value.elts[0]", "5", "mean, total = 5, 0"),
    (":total", "total=[1]", drop, "pass"),
    (":total", "return.value.left", drop, "return total"),
    (":total", "mean= ^functiondef return constant", "2", "return (mean + 2) * total"),
))
def test_a_place_and_what_stands_there_instead(house, where, path, new, expected):
    _gone, there = changed(house, where, path, new)
    assert there == expected


def test_the_function_around_a_place(house):
    assert Break("room.bucket", "add_()", drop).place(house).qualified_name == "Bucket.add"
    assert Break("room", "assign.value", "2").place(house).function is None


@pytest.mark.parametrize("where, path, said", (
    ("room.tub", "if", "'room.tub' is nowhere: {house}/room/tub.py is not a file of the package"),
    ("room.bucket:Bucket.take", "if", "'room.bucket:Bucket.take' is nowhere: nothing of the name 'take' is defined there"),
    ("room.bucket", "if.test while", "'room.bucket' has no place 'if.test while': at 'while' nothing is left"),
    ("room.bucket", "return[2]", r"'room.bucket' has no place 'return\[2\]': at 'return\[2\]' nothing is left"),
    ("room.bucket", "return", "'room.bucket' has 2 places 'return', in the lines 14, 20: the path must lead to one of them"),
    ("room.bucket", "if ?", r"'if \?' is not a path: '\?' does not begin with a step"),
    ("room.bucket:total", "#kept", "'room.bucket:total' has no place '#kept': at '#kept' nothing is left"),
))
def test_a_place_that_is_not_there_is_said(house, where, path, said):
    with pytest.raises(ValueError, match="^" + said.format(house=house.name) + "$"):
        Break(where, path, drop).place(house)


def test_what_is_no_change_is_said(house):
    one, inside = Break("room.bucket", "add_()", drop), Break("room.bucket", "add_().alpha", "2")
    with pytest.raises(ValueError, match="two changes overlap in bucket.py, at 'pass': make them one"):
        file_after([one, inside], house)
    with pytest.raises(ValueError, match="bucket.py is no Python after the change: "):
        file_after([Break("room.bucket", "add_()", "return return")], house)


OF_LIBRARIES = "accumulate", "build", "tensors"  # names that mean something else elsewhere
RESOLVE = """
from pathlib import Path
import zerocourse
from tools.mutant_table import BREAKS
from zerocourse.course.chapters.activations import activation_trial
from zerocourse.course.museum import BUGS

assert Path(zerocourse.__file__).parents[1] == Path.cwd(), zerocourse.__file__
for bug in (*BUGS, activation_trial.NOT_GATHERED_AGAIN):
    assert all(before != after for _, before, after in bug.sources()), bug.name
print(len([broken.mutant() for broken in BREAKS]))
"""


def test_other_names_in_the_package_take_no_break_away(tmp_path):
    """The buffer's methods get other names, by a search in the package and nowhere else."""
    methods = [name for name in (*vars(GradientBuffer), *vars(FlatBuffer)) if callable(getattr(FlatBuffer, name)) and not name.startswith("__")]
    methods = [name for name in methods if name not in OF_LIBRARIES]
    word = re.compile(rf"(?<!gc\.)\b({'|'.join(methods)})\b")
    for part in ("zerocourse", "tools", "tests"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__", "*.json", "*.pt"))
    for file in (tmp_path / "zerocourse").rglob("*.py"):
        text = file.read_text()
        file.write_text(word.sub(r"\1_called_otherwise", text))
    assert f"def {methods[-1]}_called_otherwise(" in (tmp_path / "zerocourse" / "zero" / "buffers" / "buffer.py").read_text()
    ran = subprocess.run([sys.executable, "-c", RESOLVE], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
                         capture_output=True, text=True, timeout=100)
    assert ran.returncode == 0 and int(ran.stdout) > 100, ran.stderr
