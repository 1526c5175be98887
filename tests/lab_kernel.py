"""A Jupyter kernel that sees what `make lab` installs, the package with its extra `notebooks`, and nothing else of this environment."""

import functools
import json
import os
import re
import sys
import tomllib
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distributions, packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NAME = "what-the-lab-has"
HOOK = Path(__file__).parent / "only_what_the_lab_has"
IN_EVERY_ENVIRONMENT = {"pip", "zerocourse"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(extra: str, *packages: str) -> set[str]:
    """The distributions that the package needs with that extra, these packages, and what they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return with_what_they_need([*project["dependencies"], *project["optional-dependencies"][extra], *packages])


def with_what_they_need(requirements: list[str]) -> set[str]:
    """These distributions and those that they need, as they say here, in normal form."""
    waiting = [(Requirement(text), "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted, of_extra = waiting.pop()
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": of_extra}):
            continue
        for each in ("", *wanted.extras):
            if (at := (normal(wanted.name), each)) not in seen:
                seen.add(at)
                with suppress(PackageNotFoundError):  # for another system or an older Python
                    waiting += [(Requirement(text), each) for text in requires(wanted.name) or []]
    return {name for name, _ in seen}


@functools.cache
def hidden_modules(*packages: str) -> frozenset[str]:
    """The top-level modules that only distributions bring which the lab does not install, nor these packages."""
    there = installed_with("notebooks", "triton", *packages) | IN_EVERY_ENVIRONMENT  # the extras of `make lab`
    # Once setuptools is imported, the distributions inside of it are found, too; without them it builds no wheel.
    there |= {normal(found.name) for found in distributions(path=[entry for entry in sys.path if entry.endswith("_vendor")])}
    return frozenset(module for module, names in packages_distributions().items() if not there & set(map(normal, names)))


def hiding(modules: Iterable[str]) -> dict[str, str]:
    """The variables of a process, and of all that it starts, in which these modules are as if they were not installed."""
    path = [str(HOOK), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "HIDDEN_MODULES": ",".join(sorted(modules))}


def add_kernel(folder: Path, *packages: str) -> dict[str, str]:
    """Write the kernel NAME, which sees these packages too, into `folder`; returns the environment in which Jupyter finds it."""
    kernel = folder / "kernels" / NAME
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": NAME, "language": "python",
        "env": hiding(hidden_modules(*packages))}))
    as_a_learner_has_it = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return as_a_learner_has_it | {"JUPYTER_PATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("JUPYTER_PATH")])])}
