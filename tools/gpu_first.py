"""What to run first where a GPU can be had: `python -m tools.gpu_first`. The checks are those of `zerocourse.course.gpu_check`."""

import sys

from zerocourse.course.gpu_check.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
