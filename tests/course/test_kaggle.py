"""What goes to Kaggle runs there: in a Python that has what Kaggle's image has, the bundle's wheel and nothing else, without a network."""

import ast
import importlib.metadata
import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import NamedTuple

import lab_kernel
import nbformat
import pytest
from exercise_sets import faults_of_a_run

from tools.notebooks import FIRST_CELL, ROOT, chapters
from zerocourse.course.learner.originals import copies_of_all

SECONDS = 300  # for the notebooks of a test, on a busy machine
# Of Kaggle's image, what the course can use; the last line is what runs a notebook there.
IMAGE = ["torch", "numpy", "pydantic", "cloudpickle", "safetensors", "matplotlib", "ipywidgets", "tqdm", "triton", "transformers",
         "nbformat", "ipykernel", "nbconvert"]
IF_THERE = {"deepspeed", "datasets"}  # imported where a user has them, or asks for what needs them
RUN = ("00_start_here", "01_memory_math", "exercises_05_zero1")  # the first one trains on two ranks

NO_NETWORK = '''
"""Imported by each Python here before anything else: only this machine can be reached, and an attempt to leave it is written down."""
import ipaddress, os, socket

def is_here(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost", socket.gethostname())

def guarded(call, host_of):
    def instead(*args, **options):
        host = host_of(*args)
        if host is not None and not is_here(host if isinstance(host, str) else bytes(host).decode()):
            with open(os.environ["LEFT_THE_MACHINE"], "a") as file:
                file.write(f"{host}\\n")
            raise OSError(f"{host} cannot be reached: there is no network")
        return call(*args, **options)
    return instead

def host_of(connection, address):
    return address[0] if connection.family in (socket.AF_INET, socket.AF_INET6) else None

for name in ("connect", "connect_ex"):
    setattr(socket.socket, name, guarded(getattr(socket.socket, name), host_of))
socket.getaddrinfo = guarded(socket.getaddrinfo, lambda host, *_: host)
'''


class Host(NamedTuple):
    """A machine like Kaggle's.   bundle: what was uploaded.   installed: where the first cell's pip installs."""

    folder: Path
    python: Path
    bundle: Path
    installed: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "JUPYTER"))}
        return kept | {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", "HOME": str(self.folder), "OMP_NUM_THREADS": "1",
                       "LEFT_THE_MACHINE": str(self.folder / "left")}

    def run(self, *names: str) -> dict[str, nbformat.NotebookNode]:
        """These notebooks of the bundle as they are after they have run, one after the other; each without an error."""
        working = self.folder / "working"
        working.mkdir(exist_ok=True)
        for name in names:
            about = json.loads((self.bundle / name / "kernel-metadata.json").read_text())
            source = (self.bundle / name / about["code_file"]).read_text()
            assert source.count('Path(\\"/kaggle/input\\")') == 1
            (working / f"{name}.ipynb").write_text(source.replace("/kaggle/input", str(self.folder / "input")))
        execute = [self.python, "-m", "nbconvert", "--to", "notebook", "--execute", "--inplace", *(f"{name}.ipynb" for name in names)]
        ended = subprocess.run(execute, cwd=working, env=self.environment, capture_output=True, text=True, timeout=SECONDS)
        assert ended.returncode == 0, ended.stderr[-4000:]
        left = self.folder / "left"
        assert not left.exists(), f"it wanted to reach {left.read_text()}"
        notebooks = {name: nbformat.read(working / f"{name}.ipynb", as_version=4) for name in names}
        assert all(cell.execution_count for each in notebooks.values() for cell in each.cells if cell.cell_type == "code")
        return notebooks


def files_of(distributions: set[str]) -> set[Path]:
    """What they have at the top of site-packages: modules, packages, and what they say of themselves. (Once setuptools has been
    imported, the distributions that it brings inside of itself are found, too.)"""
    entries = {Path(found.locate_file(file.parts[0])) for found in importlib.metadata.distributions()
               if lab_kernel.normal(found.name) in distributions for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {entry for entry in entries if entry.parent.name != "_vendor"}


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> Host:
    """The wheel lies among its inputs, and the first notebook that runs installs it. The bundle is made with what the lab has."""
    folder = tmp_path_factory.mktemp("kaggle")
    tool = subprocess.run([sys.executable, "-m", "tools.kaggle", "--user", "someone", "--out", folder / "bundle"], cwd=ROOT,
                          env=os.environ | lab_kernel.hiding(lab_kernel.hidden_modules()), capture_output=True, text=True)
    assert tool.returncode == 0, tool.stderr
    inputs = folder / "input" / "datasets" / "someone" / "zerocourse"  # deeper than /kaggle/input/zerocourse
    inputs.mkdir(parents=True)
    wheel = next((folder / "bundle" / "dataset").glob("*.whl"))
    wheel.rename(inputs / wheel.name)
    venv.create(folder / "host", symlinks=True)
    installed = next((folder / "host" / "lib").glob("python3*")) / "site-packages"
    (installed / "sitecustomize.py").write_text(NO_NETWORK)
    (folder / "site").mkdir()
    for entry in files_of(lab_kernel.with_what_they_need([*IMAGE, "pip"])):
        (folder / "site" / entry.name).symlink_to(entry)
    (installed / "host.pth").write_text(f"{folder / 'site'}\n")
    return Host(folder, folder / "host" / "bin" / "python", folder / "bundle", installed)


def test_what_setuptools_has_inside_is_hidden_from_nobody():
    """Whether or not a test of this process has imported it before."""
    program = "import setuptools, lab_kernel; print('jaraco' in lab_kernel.hidden_modules())"
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT / "tests", capture_output=True, text=True, timeout=60)
    assert ended.stdout == "False\n", ended.stderr


def test_the_bundle_has_chapters_sets_and_the_check_of_its_gpus(host):
    names = {path.parent.name for path in host.bundle.rglob("*.ipynb")}
    sets = {f"exercises_{path.stem}" for path in (ROOT / "exercises").glob("*.ipynb")}
    assert names == {path.stem for path in chapters()} | sets | {"gpu_check"} and set(RUN) <= names
    copies = copies_of_all()
    for name in names:
        about = json.loads((host.bundle / name / "kernel-metadata.json").read_text())
        assert about["id"] == f"someone/zerocourse-{name.replace('_', '-')}" and about["machine_shape"] == "NvidiaTeslaT4"
        assert not about["enable_internet"] and about["dataset_sources"] == ["someone/zerocourse"]
        cells = nbformat.read(host.bundle / name / about["code_file"], as_version=4).cells
        assert [cell.source for cell in cells].count(FIRST_CELL) == 1, name
        learners = copies.get(f"notebooks/{name}.ipynb", copies.get(f"exercises/{name.removeprefix('exercises_')}.ipynb"))
        assert name == "gpu_check" or cells == nbformat.reads(learners, as_version=4).cells, name


@pytest.mark.timeout(2 * SECONDS)
def test_chapters_and_a_set_run_where_only_the_wheel_is(host):
    run = host.run(*RUN)
    assert (host.installed / "zerocourse" / "course" / "show" / "__init__.py").exists(), "the first cell did not install the wheel"
    assert (host.installed / "zerocourse" / "course" / "learner" / "AGENTS.md").exists(), "the wheel has no words for tutors"
    assert not list(host.installed.glob("torch*")), "the first cell installed torch"
    assert {name: list(faults_of_a_run(notebook)) for name, notebook in run.items()} == {name: [] for name in RUN}
    made = subprocess.run([host.python, "-m", "zerocourse", "course"], cwd=host.folder / "working", env=host.environment, capture_output=True)
    assert made.returncode == 0, made.stderr
    found = {name: host.folder / "working" / "learning" / name for name in copies_of_all()}
    assert {name: path.read_text() for name, path in found.items()} == copies_of_all(), "the wheel has other copies"


@pytest.mark.timeout(2 * SECONDS)
def test_the_check_of_its_gpus_is_rehearsed_on_the_cpu(host, monkeypatch):
    """All checks but those of what only a GPU has; the last output is the JSON that a user can post."""
    monkeypatch.setenv("ZEROCOURSE_DEVICE", "cpu")
    text = host.run("gpu_check")["gpu_check"].cells[-1].outputs[0].text
    result = json.loads(text)
    assert result["device"] == "cpu" and result["tiny"] and result["ok"], text
    skipped = {name for name, check in result["checks"].items() if check["status"] == "skipped"}
    assert skipped == {"kernels", "head_and_attention", "bandwidth"} and len(result["checks"]) > 20
    assert str(host.folder) not in text and all(check["numbers"] for name, check in result["checks"].items() if name not in skipped)
    assert set(result["checks"]["tour"]["numbers"]["modes"]) == {"single", "ddp", "zero1", "zero2", "zero3"}


def test_a_network_would_have_been_noticed(host):
    reach = "import urllib.request; urllib.request.urlopen('http://192.0.2.1/')"
    ended = subprocess.run([host.python, "-c", reach], env=host.environment, capture_output=True, text=True)
    left = host.folder / "left"
    assert "there is no network" in ended.stderr and left.read_text() == "192.0.2.1\n"
    left.unlink()


def test_the_package_imports_what_kaggle_has():
    """Also where no notebook that runs here comes by."""
    modules = importlib.metadata.packages_distributions()
    there = lab_kernel.with_what_they_need(IMAGE)
    for path in (ROOT / "zerocourse").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else (
                [node.module] if isinstance(node, ast.ImportFrom) and not node.level else [])
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - IF_THERE:
                assert there & set(map(lab_kernel.normal, modules.get(name, ()))), f"{path.name} imports {name}"
