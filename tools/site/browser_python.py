"""Packs the Python of the two pages that answer in a browser: the package's own commands, unchanged, and the wheels that they import.

Which files of the package those are is asked of Python: what `zerocourse` imports where there is no torch.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from ..notebooks import ROOT
from .web_packages import WHEELS

ANSWER = Path(__file__).with_name("answer.py")
ASKED = """
import sys
sys.modules["torch"] = sys.modules["numpy"] = None  # a browser has neither
from zerocourse.cli import main
assert main(["memory", "--params", "7e9"]) == main(["config", "--schema"]) == main(["config", sys.argv[1]]) == 0
print(*(module.__file__ for name, module in sorted(sys.modules.items()) if name.split(".")[0] == "zerocourse"), sep="\\n", file=sys.stderr)
"""


def imported(config: Path) -> list[Path]:
    """The files of the package that commands import without torch. config: a ds_config.json that is right."""
    ended = subprocess.run([sys.executable, "-c", ASKED, str(config)], cwd=ROOT, capture_output=True, text=True, check=True)
    return [Path(line) for line in ended.stderr.splitlines()]


def pack(archive: Path, config: Path) -> None:
    """Write the zip that `python_worker.mjs` unpacks."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as files:
        for path in imported(config):
            files.write(path, path.relative_to(ROOT))
        files.write(ANSWER, ANSWER.name)
        for wheel in sorted(WHEELS.glob("*.whl")):
            with zipfile.ZipFile(wheel) as inside:
                for name in inside.namelist():
                    files.writestr(name, inside.read(name))
