"""The stages are right without any extra: the core cannot import `zero/extras` here, and `shard` is handed none, in every rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FORBIDDEN = """
import sys

class Forbidding:
    def find_spec(self, name, path=None, target=None):
        if name.startswith("zerocourse.zero.extras"):
            frame = sys._getframe()
            while frame is not None and "/zerocourse/" not in frame.f_code.co_filename:
                frame = frame.f_back
            importer = frame.f_code.co_filename.rpartition("/zerocourse/")[2] if frame is not None else ""
            if importer.startswith("zero/") and not importer.startswith("zero/extras/"):
                raise ImportError(f"{name} is forbidden in {importer}")

sys.meta_path.insert(0, Forbidding())
import zerocourse
zerocourse._HOME["shard"] = "zero.shard"
"""


def alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """Python, and each process that it starts, without the extras."""
    (folder / "sitecustomize.py").write_text(FORBIDDEN)
    paths = os.pathsep.join([str(folder), str(ROOT), str(ROOT / "tests")])
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
                          timeout=540)


def test_extras_are_forbidden(tmp_path):
    """Else the test below would say nothing."""
    forbidden = "import zerocourse.zero.shard as core; exec(compile('import zerocourse.zero.extras', core.__file__, 'exec'))"
    assert "zerocourse.zero.extras is forbidden in zero/shard.py" in alone(tmp_path, "-c", forbidden).stderr


@pytest.mark.timeout(600)
def test_stages_without_extras(tmp_path):
    ran = alone(tmp_path, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/zero/test_stages.py",
                "-k", "test_equals_the_unsharded_model or test_bytes_held or test_elements_sent")
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    assert " passed" in ran.stdout and "failed" not in ran.stdout
