"""The table of mutants still fits the package, the generic operators do what they say, and a sample is killed at once.

Whether the tests kill all of them, `python -m tools.mutants` says.
"""

import re
import subprocess
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tools.mutant import HOUSE, ROOT
from tools.mutant_list import chosen
from tools.mutant_table import BREAKS, TESTS
from tools.mutation_operators import OPERATORS, generic_edits
from tools.named_break import NamedBreak, files_of, node_ids
from zerocourse.course.museum.breaks import Break, text_after
from zerocourse.course.museum.bug import Bug
from zerocourse.course.museum.syntax_place import ModuleText
from zerocourse.errors import LossScaleError

ALL_TESTS = sorted({test for tests in (*TESTS.values(), *(broken.tests for broken in BREAKS)) for test in node_ids(tests)})


def test_every_break_still_has_its_place_and_changes_what_is_there():
    names = [broken.name for broken in BREAKS]
    assert len(set(names)) == len(names)
    for broken in BREAKS:
        mutant = broken.mutant()
        assert mutant.text != (HOUSE / mutant.file).read_text(), broken.name


def test_the_table_names_files_and_tests_that_are_there():
    assert TESTS.keys() <= files_of(HOUSE).keys()
    for test in ALL_TESTS:
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}(" in text_of(file), f"there is no {test}"


@cache
def text_of(file: str) -> str:
    return (ROOT / "tests" / file).read_text()


def test_the_table_names_parameters_of_tests_that_are_there(request):
    """For all files that this session has collected whole."""
    config = request.config
    if config.getoption("--quick") or config.getoption("keyword") or any("::" in arg for arg in config.args):
        pytest.skip("only a part of the tests was collected")
    there = {re.sub(r"@[^]]*$", "", item.nodeid).partition("tests/")[2] for item in request.session.items}
    functions, files = ({id.partition(end)[0] for id in there} for end in ("[", "::"))
    gone = [test for test in ALL_TESTS if test.partition("::")[0] in files and test not in there | functions]
    assert not gone, gone


# Their tests need no fixture and no other process: they are called here, while the break is planted.
SAMPLE = ("a good step does not end the row", "one beta", "the seed does not matter", "the end of a step is not explained",
          "gradients that come twice are not noticed")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_is_killed(name):
    broken, = (each for each in BREAKS if each.name == name)
    (file, _, test), = (node.partition("::") for node in node_ids(broken.tests[:1]))
    spec = spec_from_file_location(Path(file).stem, ROOT / "tests" / file)
    spec.loader.exec_module(module := module_from_spec(spec))
    getattr(module, test)()
    with Bug(name, *[""] * 5, broken.breaks).planted(), pytest.raises((AssertionError, LossScaleError, pytest.fail.Exception)):
        getattr(module, test)()


OPERATIONS = (
    ("if a < b: go()", "condition", {"if False: go()", "if True: go()"}),
    ("x = [a for a in b if a]", "condition", {"x = [a for a in b if False]", "x = [a for a in b if True]"}),
    ("x = a if b else c", "condition", {"x = a", "x = c"}),
    ("while a: go()", "condition", {"while False: go()"}),
    ("x = a < b <= c", "comparison", {"x = (a) <= (b) <= (c)", "x = (a) < (b) < (c)"}),
    ("x = a is not b", "comparison", {"x = (a) is (b)"}),
    ("x = a and b and c", "operand", {"x = b and c", "x = a and c", "x = a and b"}),
    ("x = (a + b) * c", "operand", {"x = (a) * c", "x = (b) * c", "x = c", "x = a + b"}),
    ("x = a - b", "arithmetic", {"x = (a) + (b)"}),
    ("x += a", "arithmetic", {"x = a", "x -= a"}),
    ("x = not a", "negation", {"x = a"}),
    ("x = -a[1]", "negation", {"x = a[1]"}),
    ("x = a[1]", "constant", {"x = a[2]", "x = a[0]"}),
    ("x = True", "constant", {"x = False"}),
    ("x = 0.5", "constant", {"x = 1.0", "x = 0.0"}),
    ("a.go(b)", "statement", {"pass"}),
    ("a.b = c", "statement", {"pass"}),
    ("for a in b: break", "statement", {"for a in b: continue"}),
    ("x = sorted(a.b(), key=c)", "call", {"x = a.b()", "x = sorted(a, key=c)"}),
    ("x = max(a, b)", "call", {"x = a", "x = b", "x = min(a, b)"}),
    ("a.pop().wait()", "call", {"a.pop()", "a.wait()"}),
    ("go(a, b, c=d)", "argument", {"go(b, c=d)", "go(a, c=d)", "go(a, b)", "go(b, a, c=d)"}),
    ("x = f'{a} of {b}'", "words", {"x = f' of {b}'", "x = f'{a} of '"}),
    ("with a(): go()", "context", {"with __import__('contextlib').nullcontext(): go()"}),
    ("for a in b: go()", "loop", {"for a in (): go()", "for a in [*(b)][1:]: go()"}),
    ("x = (a, b)", "element", {"x = (a,)", "x = (b,)"}),
    ("x = [a, b]", "element", {"x = [a]", "x = [b]"}),
    ("x = a[1:b]", "cut", {"x = a[:b]", "x = a[1:]"}),
    ("def f(x: int = 1) -> 'a' + 'b':\n    'Adds 1.'\n    raise E(x + 1)", "arithmetic", set()),
)


@pytest.mark.parametrize("code, name, expected", OPERATIONS)
def test_what_an_operator_makes(tmp_path, code, name, expected):
    (tmp_path / "a.py").write_text(code)
    source = ModuleText(tmp_path / "a.py")
    assert {text_after(source, [edit]) for operator, _, edit in generic_edits(source) if operator == name} == expected


def test_every_operator_is_shown():
    assert {name for _, name, _ in OPERATIONS} == {operator.__name__ for operator in OPERATORS}


def test_mutants_of_a_file_and_of_its_lines():
    whole, lines, few = chosen(["engine/updates/lion.py"], None), chosen(["lion.py:30-40"], None), chosen(["lion"], 5)
    assert {mutant.file for mutant in (*whole, *lines, *few)} == {"engine/updates/lion.py"}
    assert {mutant.name for mutant in few} | {mutant.name for mutant in lines} <= {mutant.name for mutant in whole}
    assert all(30 <= int(mutant.name.partition(":")[0]) <= 40 for mutant in lines if ":" in mutant.name)
    assert [sum(":" in mutant.name for mutant in of) for of in (lines, few)] == [len(lines) - 2, 5]


def test_the_command_does_not_import_the_package():
    """Else a test in the process of the command would see the whole package, and every mutant would survive it."""
    code = "import sys; from tools.mutants import listed; listed(['lion.py:30'], None); assert 'zerocourse' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("place, said", (("nothing.py", "'nothing.py' is not a file of the package"),
                                         ("rankmap.py:a", "'rankmap.py:a' is not a file of the package, nor lines of one"),
                                         ("errors.py", "which tests should notice a break in errors.py is not said")))
def test_a_place_without_mutants_is_said(place, said):
    with pytest.raises(ValueError, match=said):
        chosen([place], None)


def test_a_break_without_its_place_says_which_mutant_it_is():
    with pytest.raises(ValueError, match="mutant 'broken': 'layout.rankmap' has no place 'while': at 'while' nothing is left"):
        NamedBreak("broken", (Break("layout.rankmap", "while", "pass"),), ()).mutant()
