"""The bench as a program of its own, started by `runner.measure` under the meters."""

import sys

from .runner import main

if __name__ == "__main__":
    main(sys.argv[1])
