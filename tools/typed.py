"""What pyright says of the package: the rooms that are strict are without an error, and in the others errors only get fewer.

    python -m tools.typed            every room; with more errors than the table has, it shows them, and ends with status 1
    python -m tools.typed layout     these rooms alone

`[tool.pyright]` in pyproject.toml says which rooms are strict, and which are not looked at. It is run as basedpyright, whose
wheel brings node with it, so that nothing is fetched.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
ERRORS = {  # by room, how many there may be: 0 where none is named. Lower a number when you have mended some
    "activations": 5, "bench": 21, "classics": 1, "cli.py": 2, "comm": 46, "commands": 8, "data": 4, "engine": 232, "init": 10,
    "kernels": 7, "launch": 24, "measure": 17, "memory": 4, "models": 14, "offload": 86, "parallel": 106, "planning": 18, "precision": 1,
    "simulation": 15, "zero": 144,
}


def errors(rooms: list[str]) -> dict[str, list[str]]:
    """By room, what pyright says, a line each."""
    said = subprocess.run([sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable,
                           *(f"zerocourse/{room}" for room in rooms)], cwd=ROOT, capture_output=True, text=True)  # its status says nothing new
    if not said.stdout.lstrip().startswith("{"):
        raise RuntimeError(f"basedpyright has said nothing about the code: {said.stderr or said.stdout}")
    found = defaultdict(list)
    for each in json.loads(said.stdout)["generalDiagnostics"]:
        if each["severity"] == "error":
            file = Path(each["file"]).relative_to(ROOT)
            line = each["range"]["start"]["line"] + 1
            found[file.parts[1]].append(f"{file}:{line} {each['message'].splitlines()[0]} ({each.get('rule', 'syntax')})")
    return found


def more(found: dict[str, list[str]]) -> list[str]:
    """The errors of the rooms that have more than the table says, and of each such room a line that says so."""
    return [line for room, said in found.items() if len(said) > (most := ERRORS.get(room, 0))
            for line in (*said, f"{room} has {len(said)} errors of types, and tools/typed.py has {most}: mend what you have added")]


def main(rooms: list[str]) -> int:
    found = errors(rooms)
    wrong = more(found)
    fewer = [f"{room} has {len(found[room])} errors of types, and tools/typed.py has {most}: lower the number" for room, most in ERRORS.items()
             if len(found[room]) < most and (not rooms or room in rooms)]
    print("\n".join([*wrong, *fewer, f"{sum(map(len, found.values()))} errors of types in {len(found)} rooms"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
