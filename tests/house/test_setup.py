"""The set-up files agree with each other, and the command line keeps its word. Nothing here reaches a network."""

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import zerocourse
from zerocourse import cli
from zerocourse.course.learner.originals import copies_of_all

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
COMMANDS = set(cli.modules())
# PyTorch's CPU wheels; forges, and sites with documents: never a package registry.
ALLOWED_HOSTS = {"download.pytorch.org", "github.com", "kaggle.com", "www.kaggle.com", "colab.research.google.com", "arxiv.org", "doi.org",
                 "creativecommons.org", "gradescope-autograders.readthedocs.io"}
REGISTRIES = ("pypi", "pythonhosted", "npmjs", "anaconda.org", "conda.anaconda")
FROM_CONDA = {"pytorch": "torch", "matplotlib-base": "matplotlib"}  # conda-forge's name -> pip's


def requirements(*extras: str) -> dict[str, Requirement]:
    """What pyproject.toml asks for, by name: its dependencies, and those of `extras` (by default of all)."""
    wanted = list(PROJECT["dependencies"])
    for extra in extras or PROJECT["optional-dependencies"]:
        wanted += PROJECT["optional-dependencies"][extra]
    parsed = {canonicalize_name(one.name): one for one in map(Requirement, wanted)}
    parsed.pop(PROJECT["name"], None)  # an extra that includes another one
    return parsed


def test_a_notebook_names_the_packages_that_are_not_there(monkeypatch):
    """All that chapters import are looked for, before anything of the package is imported that needs one."""
    assert set(zerocourse._NEEDED) == {*(Requirement(each).name for each in PROJECT["dependencies"]), "ipywidgets"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("cloudpickle", "tqdm") else name)
    with pytest.raises(ModuleNotFoundError, match="needs cloudpickle, tqdm, not installed here: run %pip install cloudpickle tqdm"):
        zerocourse.load_ipython_extension(None)



def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): Version(version) for name, version in
            (line.split("==") for line in lines if line and not line.startswith("#"))}


def readme_code() -> list[str]:
    """The command lines of the indented blocks of the README and the guides, and of their inline code."""
    text = "\n".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    return re.findall(r"^    (\S.*)$", text, re.M) + re.findall(r"`([^`\n]+)`", text)


# pyproject.toml and constraints.txt

def test_constraints_are_exact_versions_that_are_valid_everywhere():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    odd = [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)]
    assert not odd, f"constraints.txt must say name==version, without paths or local versions: {odd}"
    assert len(pins()) == len(lines), "constraints.txt names a package twice"


def test_constraints_lie_in_the_ranges_of_pyproject():
    pinned = pins()
    for name, requirement in requirements().items():
        assert name in pinned, f"{name} is in pyproject.toml and has no tested version in constraints.txt"
        assert pinned[name] in requirement.specifier, f"constraints.txt has {name}=={pinned[name]}, not {requirement}"


def test_constraints_pin_what_the_packages_bring_along():
    """Walks the installed packages that have the pinned version, as on Linux; torch pins its CUDA packages itself."""
    pinned, seen, unpinned = pins(), set(), set()
    linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    todo = list(requirements().values())
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in seen or name.startswith(("nvidia-", "cuda-")):
            continue
        seen.add(name)
        if name not in pinned:
            unpinned.add(name)
            continue
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if Version(found.version).public != pinned[name].public:
            continue
        extras = requirement.extras or {""}
        todo += [one for one in map(Requirement, found.requires or ())
                 if one.marker is None or any(one.marker.evaluate(linux | {"extra": extra}) for extra in extras)]
    assert not unpinned, f"constraints.txt does not pin {sorted(unpinned)}"


def test_version_has_one_home():
    assert "version" not in PROJECT
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "zerocourse.__version__"}
    Version(zerocourse.__version__)


# environment.yml

def conda_environment() -> tuple[dict[str, str], list[str]]:
    """The conda dependencies, as pip's name -> specifier, and the lines of the `pip:` section."""
    by_conda, by_pip = {}, []
    for dependency in yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]:
        if isinstance(dependency, dict):
            assert set(dependency) == {"pip"}
            by_pip += dependency["pip"]
            continue
        match = re.fullmatch(r"([a-z0-9._-]+)(?: ([<>=!~0-9.,]+))?", dependency)
        assert match, f"environment.yml: {dependency!r} is not 'name' or 'name bounds'"
        name, bounds = match.groups(default="")
        SpecifierSet(bounds)  # bounds with only these signs mean the same to conda and to pip
        assert "==" not in bounds and "~" not in bounds, f"environment.yml: {dependency!r} is not a range"
        by_conda[FROM_CONDA.get(name, name)] = bounds
    return by_conda, by_pip


def test_environment_file_has_the_shape_that_conda_reads():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert set(environment) == {"name", "channels", "dependencies"}
    assert environment["name"] == PROJECT["name"]
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    by_conda, by_pip = conda_environment()
    assert "pip" in by_conda, "a pip: section needs pip itself"
    assert "-e ." in by_pip


def test_environment_file_has_the_bounds_of_pyproject():
    by_conda, by_pip = conda_environment()
    by_conda.pop("pip")
    assert SpecifierSet(by_conda.pop("python")) == SpecifierSet(PROJECT["requires-python"])
    known = requirements()
    for name, bounds in by_conda.items():
        assert name in known, f"environment.yml has {name}, pyproject.toml has not"
        assert SpecifierSet(bounds) == known[name].specifier, f"environment.yml has {name} {bounds}, not {known[name]}"
    missing = set(requirements("notebooks")) - set(by_conda)
    assert not missing, f"environment.yml lacks {sorted(missing)}: pip would fetch them over conda's"
    for line in by_pip:
        if not line.startswith("-"):
            assert Requirement(line) == known[canonicalize_name(Requirement(line).name)]


# README.md, Makefile, .ci/run

def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def test_readme_names_only_what_exists():
    words = [line.split() for line in readme_code()]
    made = {line[1] for line in words if line[0] == "make" and len(line) > 1}
    assert {"tour", "test"} <= made <= make_targets()
    run = {line[1] for line in words if line[0] == "zerocourse" and len(line) > 1 and line[1].islower()}
    assert run - {"--help"} <= COMMANDS, f"the README names commands that are not there: {run - COMMANDS}"
    for path in (path for line in words for path in line if re.fullmatch(r"(zerocourse|tests|notebooks)/\S+", path)):
        assert (ROOT / path).exists(), f"the README names {path}, which is not there"


def test_the_guide_has_a_row_for_every_command():
    rows = set(re.findall(r"^\| `zerocourse (\w+)", (ROOT / "docs/commands.md").read_text(), re.M))
    assert rows == COMMANDS, f"the table of docs/commands.md has {sorted(rows)}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml", "constraints.txt",
                                  "environment.yml", ".ci/run", "CITATION.cff", "SECURITY.md", "CHANGELOG.md", "LICENSE-prose",
                                  "docs/conf.py", ".github/workflows/tests.yml"])
def test_no_other_host_is_named(name):
    text = (ROOT / name).read_text()
    hosts = set(re.findall(r"https?://([^/\s)>`\"']+)", text))
    hosts |= set(re.findall(r"(?<![\w./-])((?:[a-z0-9-]+\.)+(?:org|com|io|net|dev|ai))\b", text))
    assert hosts <= ALLOWED_HOSTS, f"{name} names {hosts - ALLOWED_HOSTS}"
    assert not [each for each in REGISTRIES if each in text]


def test_the_workflow_runs_what_is_there():
    """As a forge reads it: a matrix of Python and torch inside of pyproject's ranges, and make's targets."""
    jobs = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())["jobs"]
    for name, job in jobs.items():
        assert {"runs-on", "timeout-minutes", "steps"} <= set(job), name
        for step in job["steps"]:
            assert len({"run", "uses"} & set(step)) == 1, step
            assert not (made := re.match(r"make (\S+)", step.get("run", ""))) or made[1] in make_targets()
    rows = jobs["others"]["strategy"]["matrix"]["include"]
    torch = requirements()["torch"].specifier
    assert all(Version(f"{row['torch'].removesuffix('.*')}.0") in torch for row in rows)
    assert {row["python"] for row in rows} | set(jobs["tested"]["strategy"]["matrix"]["python"]) == {"3.11", "3.12", "3.13", "3.14"}
    assert all(Version(row["python"]) in SpecifierSet(PROJECT["requires-python"]) for row in rows)


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_an_issue_template_has_what_a_forge_wants(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"] and form["body"]
    for field in form["body"]:
        assert field["type"] in ("input", "textarea", "dropdown") and field["attributes"]["label"]
        assert field["type"] != "dropdown" or len(field["attributes"]["options"]) > 1


def test_the_citation_has_the_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["version"] == zerocourse.__version__ and cited["authors"] and cited["title"]
    assert f"## {zerocourse.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert set(cited["license"]) == set(PROJECT["license"].split(" AND "))


@pytest.fixture
def make(tmp_path):
    """Runs `make` with an environment folder that is not there yet."""
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    clean = {key: value for key, value in os.environ.items()  # not the outer make's settings
             if key not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "PYTHON", "TORCH_INDEX")}

    def run(*arguments, **environment):
        return subprocess.run(["make", f"VENV={tmp_path / 'venv'}", *arguments], cwd=ROOT, env=clean | environment,
                              capture_output=True, text=True, timeout=60)
    return run


@pytest.mark.parametrize("target, package", [("tour", "-e '.'"), ("test", "-e '.[test,triton]'"),
                                             ("lab", "-e '.[notebooks,triton]'")])
def test_make_installs_torch_first_and_alone(make, target, package):
    index = "https://download.pytorch.org/whl/cpu"
    installs = [line.split(" install ")[1] for line in make("-n", target, f"TORCH_INDEX={index}").stdout.splitlines()
                if " install " in line]
    assert installs == [f"-c constraints.txt --extra-index-url {index} torch", f"-c constraints.txt {package}"]


def test_make_lab_opens_chapter_00_for_every_user(make, tmp_path):
    """Also for root, whom JupyterLab turns away unless it is told not to."""
    for user in ("0", "1000"):
        (tmp_path / "id").write_text(f"#!/bin/sh\necho {user}\n")
        (tmp_path / "id").chmod(0o755)
        made = make("-n", "lab", PATH=f"{tmp_path}:{os.environ['PATH']}").stdout
        started = made.splitlines()[-1]
        folder, opened = re.search(r"-m jupyterlab .*root_dir=(\S+) .*default_url=/lab/tree/(\S+)", started).groups()
        assert opened in copies_of_all() and f"course {folder} --update" in made, started
        assert f"{folder}/" in (ROOT / ".gitignore").read_text().splitlines()
        assert ("--allow-root" in started) == (user == "0"), started


def test_make_says_which_python_is_right(make, tmp_path):
    old = tmp_path / "old-python"
    old.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c '
                   '"import sys; sys.version_info = (3, 10, 4); exec(sys.argv[2])" "$@"\n')
    old.chmod(0o755)
    for python, complaint in ((old, f"{old} is 3.10"), (tmp_path / "nothing", "there is no")):
        ended = make("tour", f"PYTHON={python}")
        assert ended.returncode != 0 and not (tmp_path / "venv").exists()
        sentence = ended.stderr.splitlines()[0]
        assert "needs Python 3.11 or newer" in sentence and complaint in sentence


def test_python_versions_agree():
    """The Makefile's own check and sentence, against pyproject.toml."""
    text = (ROOT / "Makefile").read_text()
    lowest = ".".join(re.search(r"v >= \((\d+), (\d+)\)", text).groups())
    assert PROJECT["requires-python"] == f">={lowest}" and f"needs Python {lowest} or newer" in text


def test_ci_ends_with_the_tests():
    script = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", script], check=True, timeout=10)
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and "set -euo pipefail" in lines
    assert lines[-1] == "make test"


# the command line

def zerocourse_command(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-m", "zerocourse", *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=60)


def test_version_flag():
    ended = zerocourse_command("--version")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, f"zerocourse {zerocourse.__version__}\n", "")


WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError("this command imports torch, which takes seconds")

sys.meta_path.insert(0, NoTorch())
from zerocourse.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("words", ["--help", "--version", "list", "list 5", "memory --params 7e9", "memory --table1",
                                   "memory --model gpt2-xl --ranks 8", "config --schema", "memory --device 24GB --host 64GB --params 7e9 --ranks 1",
                                   *(f"{command} --help" for command in sorted(COMMANDS))])
def test_what_needs_no_torch_imports_none(words):
    ended = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *words.split()], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0 and ended.stdout and not ended.stderr, ended.stderr


def test_a_bad_command_gets_one_sentence_and_status_2():
    ended = zerocourse_command("trian")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "trian" in ended.stderr and len(ended.stderr.splitlines()) == 1, ended.stderr


def test_help_lists_the_commands(capsys):
    assert cli.main(["--help"]) == 0
    listed = set(re.findall(r"^    (\w+)(?: |$)", capsys.readouterr().out, re.M))
    assert listed >= COMMANDS


def test_the_script_entry_is_the_command_line():
    module, function = PROJECT["scripts"]["zerocourse"].split(":")
    assert getattr(importlib.import_module(module), function) is cli.main
