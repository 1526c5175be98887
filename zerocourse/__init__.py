"""zerocourse: ZeRO (the Zero Redundancy Optimizer), every idea as real code small enough to read in an evening."""

__version__ = "0.1.0"
