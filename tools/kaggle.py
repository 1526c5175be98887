"""Builds output/kaggle/: what one uploads to run the course on two T4, without internet.

    dataset/             the wheel and dataset-metadata.json      kaggle datasets create -p output/kaggle/dataset
    NN_topic/            a chapter and kernel-metadata.json       kaggle kernels push -p output/kaggle/NN_topic
    exercises_NN_topic/  a set of exercises, with blanks, likewise
    gpu_check/           what asks Kaggle's GPUs whether they compute what the course says, likewise

`--user NAME` is the account that the metadata name; it can be changed in the files later. Or upload the wheel and the
notebooks by hand: the first cell of each finds the wheel among a notebook's inputs wherever it lies.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat

from zerocourse.course.learner.originals import FOLDERS, copies_of_all

from .notebooks import FIRST_CELL, ROOT

KAGGLE = {"accelerator": "nvidiaTeslaT4", "dataSources": [], "isGpuEnabled": True, "isInternetEnabled": False,
          "language": "python", "sourceType": "notebook"}
PACKAGED = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "LICENSE-prose", "zerocourse", *FOLDERS)
GPU_CHECK = ROOT / "tools" / "gpu_check.ipynb"


def bundled() -> dict[str, str]:
    """The notebooks of the bundle as text, by the name that each has there: a learner's copies, and the check of the GPUs."""
    learners = {name.removeprefix("notebooks/").replace("/", "_").removesuffix(".ipynb"): text for name, text in copies_of_all().items()}
    return learners | {GPU_CHECK.stem: GPU_CHECK.read_text("utf-8")}


def build(out: Path, user: str) -> Path:
    """Make the folder `out` anew and return the wheel in it. Raises subprocess.CalledProcessError."""
    with tempfile.TemporaryDirectory() as draft:
        made = Path(draft) / "kaggle"
        wheel = build_wheel(made / "dataset")
        write_json(made / "dataset" / "dataset-metadata.json",
                   {"title": "zerocourse", "id": f"{user}/zerocourse", "licenses": [{"name": "other"}]})
        for name, text in bundled().items():
            add_notebook(text, made / name, user)
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(made, out)
    return out / "dataset" / wheel.name


def build_wheel(folder: Path) -> Path:
    """The package as a wheel, built from a copy: setuptools leaves its work beside the sources, and would reuse it."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as copy:
        for name in PACKAGED:
            source, target = ROOT / name, Path(copy) / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)
        subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps",
                        "--no-build-isolation", "--wheel-dir", folder, copy], check=True)
    return next(folder.glob("*.whl"))


def add_notebook(text: str, folder: Path, user: str) -> None:
    """One notebook as Kaggle wants it; a kernel's id is its title in small letters with dashes."""
    folder.mkdir(parents=True)
    notebook = nbformat.reads(text, as_version=4)
    notebook.metadata["kaggle"] = KAGGLE
    for cell in notebook.cells:
        if cell.source.startswith(FIRST_CELL.splitlines()[0]):
            cell.source = FIRST_CELL  # of which GPU_CHECK has the first line alone
    (folder / f"{folder.name}.ipynb").write_text(nbformat.writes(notebook) + "\n")
    title = f"zerocourse {folder.name.replace('_', ' ')}"
    write_json(folder / "kernel-metadata.json", {
        "id": f"{user}/{title.replace(' ', '-')}", "title": title, "code_file": f"{folder.name}.ipynb", "language": "python",
        "kernel_type": "notebook", "is_private": True, "enable_gpu": True, "machine_shape": "NvidiaTeslaT4",
        "enable_internet": False, "dataset_sources": [f"{user}/zerocourse"], "competition_sources": [],
        "kernel_sources": [], "model_sources": []})


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kaggle", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--user", default="USERNAME", help="your Kaggle account")
    parser.add_argument("--out", type=Path, default=ROOT / "output" / "kaggle")
    options = parser.parse_args()
    wheel = build(options.out, options.user)
    print(f"{wheel.name} and {len(bundled())} notebooks are in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
