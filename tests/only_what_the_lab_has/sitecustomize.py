"""Imported by each Python that has this folder on its path, before anything else: the modules in HIDDEN_MODULES, names with commas
between them, are as if they were not installed. Ranks inherit folder and variable from the kernel that starts them."""

import os
import sys
from importlib.machinery import PathFinder

HIDDEN = frozenset(os.environ.get("HIDDEN_MODULES", "").split(","))


class WithoutHidden(PathFinder):
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if path is None and fullname in HIDDEN else super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutHidden
