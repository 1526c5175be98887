"""See the package: `python -m zerocourse.course.gpu_check --help`."""

import argparse
import sys
from pathlib import Path

from ...errors import BadInput
from . import __doc__ as about


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, 1 (a check has failed), 2 (no GPU, or an unknown name)."""
    parser = argparse.ArgumentParser(prog="python -m zerocourse.course.gpu_check", description=about,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CHECK", help="all by default")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few steps")
    parser.add_argument("--out", type=Path, default=Path("output/gpu_check"), metavar="DIR",
                        help="for gpu_check.json and traces (default output/gpu_check)")
    options = parser.parse_args(argv)
    from .check_runner import RESULT, run_checks  # here, because torch takes seconds to import
    from .table import CHECKS

    try:
        result = run_checks(options.names or list(CHECKS), options.out, options.device, options.tiny, lambda line: print(line, flush=True))
    except BadInput as error:
        print(error, file=sys.stderr)
        return 2
    print(f"written to {options.out / RESULT}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
