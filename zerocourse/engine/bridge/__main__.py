"""`python -m zerocourse.engine.bridge SCRIPT [ARGUMENTS]`: runs a script in which `import deepspeed` finds our stages."""

import os
import runpy
import sys

from ...comm import bootstrap
from .stand_in import install


def main() -> None:
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        given = f"is {sys.argv[1]}, which is not a file" if len(sys.argv) > 1 else "is missing"
        sys.exit(f"zerocourse.engine.bridge: SCRIPT {given}: name a Python script, then its arguments")
    if not bootstrap.uses_gpu():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # or accelerate, which knows of no switch, would move the batches to a GPU
    install()
    del sys.argv[0]
    sys.path.insert(0, os.path.dirname(os.path.abspath(sys.argv[0])))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
