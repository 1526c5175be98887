"""Forms of a config that upstream takes, too: comments, keys of old files, and sections that mean nothing where they stand.

Each becomes what it means, with a sentence for the warning; what would mean two things at once is refused.
"""

from .keys import KEYS, Group, is_off
from .problems import get, shown

COMMENT = "_", "//", "#", "$"  # how the name of a comment begins; "$schema" is one for editors
SWITCHES = (0, 1)  # as C has false and true


def without_comments(given: dict, problems: dict[str, str], section: str = "") -> dict:
    """A copy without the keys that are comments, and without those that are no text, with a sentence for each; however deep."""
    kept = {}
    for key, value in given.items():
        if isinstance(key, str) and (key.startswith(COMMENT) or key.lower() in ("comment", "comments")):
            continue
        path = f"{section}.{key}" if section else str(key)
        if not is_text(path):
            problems[ascii(path)] = f"{section or 'the config'} has the key {shown(key)}, which has half of a character and is no text: leave it out"
            continue
        kept[key] = without_comments(value, problems, path) if isinstance(value, dict) else value
    return kept


def is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def translate(given: dict, problems: dict[str, str]) -> list[str]:
    """Give old forms their present ones, in place. Returns a sentence for each; those that are wrong are in `problems`, by path."""
    said: list[str] = []
    if given.get("zero_optimization") is True:
        given["zero_optimization"] = {"stage": 1}
        said.append("zero_optimization is true, an old form: it means {\"stage\": 1}")
    old = [path for path, key in KEYS.items() if key.group is Group.TRANSLATED]
    for path in old:
        replace_old(given, path, said, problems)
    zero = given.get("zero_optimization")
    if isinstance(zero, dict):
        offload_together(zero, said)
    return said


def replace_old(given: dict, path: str, said: list[str], problems: dict[str, str]) -> None:
    section, _, name = path.rpartition(".")
    inside = get(given, section) if section else given
    if not isinstance(inside, dict) or name not in inside:
        return
    value, now = inside.pop(name), KEYS[path].does.removeprefix("write ")
    new = now.partition(":")[0].rpartition(".")[2]
    if isinstance(value, int) and value in SWITCHES and KEYS[path].kind == "boolean":
        value = {"device": "cpu"} if value else None
    elif value is not None and not (isinstance(value, dict) and KEYS[path].kind == "object"):
        problems[path] = f"{path} is {value!r:.60}: it must be {'true or false' if KEYS[path].kind == 'boolean' else 'an object'}"
        return
    if value is None:
        return
    if new in inside:
        problems[path] = f"{path} is an old form of {now}, which is there as well: keep one of them"
        return
    inside[new] = value
    said.append(f"{path} is an old form: it means {now}")


def offload_together(zero: dict, said: list[str]) -> None:
    """Parameters that are offloaded below stage 3 stay where they are; at stage 3 their optimizer states go with them."""
    path, param, states = "zero_optimization.offload_param", zero.get("offload_param"), zero.get("offload_optimizer")
    if not isinstance(param, dict) or param.get("device") not in ("cpu", "nvme"):
        return
    if zero.get("stage", 0) in (0, 1, 2):
        del zero["offload_param"]
        said.append(f"{path} changes nothing below stage 3, where every rank has all parameters")
    elif zero["stage"] == 3 and is_off(states):
        zero["offload_optimizer"] = {key: value for key, value in param.items() if key in ("device", "nvme_path", "pin_memory")}
        said.append(f"{path} is there without offload_optimizer: what optimizer states there are lie with their parameters, on "
                    f"{param['device']!r}")
