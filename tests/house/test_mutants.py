"""The table of mutants still fits the package. Whether the tests kill them, `python -m tools.mutants` says."""

import re
from pathlib import Path

import pytest

from tools.mutant_table import MUTANTS
from tools.mutants import ROOT, Mutant, node


def test_every_mutant_still_applies():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    for mutant in MUTANTS:
        assert mutant.apply(ROOT / "zerocourse") != (ROOT / "zerocourse" / mutant.file).read_text()
        for test in mutant.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}(" in (ROOT / node(file)).read_text(), f"{mutant.name}: there is no {test}"


def test_every_mutant_names_tests_that_are_there(request):
    """With their parameters, for all files that this session has collected whole."""
    config = request.config
    if config.getoption("--quick") or config.getoption("keyword") or any("::" in arg for arg in config.args):
        pytest.skip("only a part of the tests was collected")
    there = {item.path.name + re.sub(r"@[^]]*$", "", item.nodeid)[item.nodeid.index("::"):] for item in request.session.items}
    functions, files = ({id.partition(end)[0] for id in there} for end in ("[", "::"))
    gone = [f"{mutant.name}: {test}" for mutant in MUTANTS for test in mutant.tests
            if test.partition("::")[0] in files and test not in there | functions]
    assert not gone, gone


@pytest.mark.parametrize("text, times", (("", 0), ("x = 1\nx = 1\n", 2)))
def test_a_mutant_that_does_not_apply_is_said(tmp_path: Path, text: str, times: int):
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(ValueError, match=f"'broken': its old text is {times} times in a.py"):
        Mutant("broken", "a.py", "x = 1", "x = 2", ()).apply(tmp_path)
