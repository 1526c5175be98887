"""Reads a ds_config and checks it as a whole, so that all that is wrong with it is said at once."""

import copy
import math
import warnings
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from ...errors import BadInput
from . import auto, json_file
from .keys import FALSE_IS_A_CHOICE, KEYS, ONLY, WORKS, Group, is_off
from .old_forms import SWITCHES, translate, without_comments
from .problems import BY_TYPE, by_keys, choices, get, shown
from .rules import SIZES, batch_sizes, broken, groups_of_experts
from .schema import ConfigFile

KINDS = {"boolean": (bool, "true or false"), "integer": (int, "an integer"), "number": ((int, float), "a number"),
         "string": (str, "a string"), "object": (dict, "an object")}


class Config(ConfigFile):
    """A resolved configuration: train_batch_size = micro batch × accumulation × world size."""

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int

    @classmethod
    def load(cls, config: dict | str | Path, world_size: int, known: Mapping[str, object] | None = None) -> "Config":
        """Read a dictionary or a JSON file, for this many ranks. Raises BadInput with a line for each problem.

        known: values of keys that are "auto", by path (see `auto.known_values`).
        Warns of old forms, with what they mean, and once of keys that DeepSpeed knows and that change nothing here, with
        their names.
        """
        text, given = read(config)
        problems: dict[str, str] = {}
        given = without_comments(given, problems)
        problems |= auto.resolve(given, known or {})
        notes = translate(given, problems)
        ignored = sort_out(given, problems)
        checked = check(given, problems)
        wrong = set(problems)
        problems |= broken(checked, wrong)
        sizes: tuple = ()
        if not wrong.intersection(SIZES):
            try:
                sizes = batch_sizes(*(getattr(checked, name) for name in SIZES), world_size)
            except BadInput as error:
                problems[SIZES[0]] = str(error)
        if checked.has_groups_of_experts:
            try:
                groups_of_experts(checked, world_size)
            except BadInput as error:
                problems.setdefault("expert_parallel.autoep_size", str(error))
        twice = json_file.duplicates(text)
        if problems or twice:
            raise BadInput("\n".join(placed([*twice.items(), *problems.items()], text, config)))
        if ignored:
            notes.append(f"these keys of the config change nothing here and are ignored: {', '.join(ignored)}")
        for note in notes:
            warnings.warn(note, stacklevel=3)
        return cls(**dict(checked) | dict(zip(SIZES, sizes, strict=True)))

    def as_dict(self) -> dict:
        """The config with every default resolved, ready to be written as JSON."""
        return self.model_dump(mode="json")


def read(config: object) -> tuple[str, dict]:
    """The file's text and what is in it; of a dictionary no text and a copy."""
    if not isinstance(config, dict | str | Path):
        kind = type(config).__name__
        what = "None" if config is None else f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
        raise BadInput(f"the config is {what}: it must be a dictionary or a JSON file's path")
    if isinstance(config, dict):
        return "", copy.deepcopy(config)
    text = json_file.read_text(Path(config))
    return text, json_file.parse(text, Path(config))


def placed(problems: list[tuple[str, str]], text: str, config: object) -> list[str]:
    """The sentences in the order of the file, each with the line of its key, or of the section that lacks it."""
    if not text:
        return [sentence for _, sentence in problems]
    places = {path: (place, line) for place, (path, line) in enumerate(json_file.keys_by_line(text))}
    found = []
    for path, sentence in problems:
        while path and path not in places:
            path = path.rpartition(".")[0]
        place, line = places.get(path, (-1, 0))
        found.append((place, f"{sentence} ({config}{f', line {line}' if path else ''})"))
    return [sentence for _, sentence in sorted(found, key=lambda each: each[0])]


def sort_out(given: dict, problems: dict[str, str]) -> list[str]:
    """Take out of the dictionary what the models do not know: keys that change nothing, which are returned, and those
    that are refused, with a sentence for each. A section that is null or false goes, too.
    """
    ignored: list[str] = []

    def visit(section: dict, prefix: str) -> None:
        for key, value in list(section.items()):
            path = f"{prefix}{key}"
            if path not in KEYS or "." in key:
                continue
            group, does, kind = KEYS[path].group, KEYS[path].does, KEYS[path].kind
            if group is Group.WORKS:
                if isinstance(value, dict):
                    visit(value, f"{path}.")
                elif (value is None or value is False) and f"{path}." in SECTIONS:
                    del section[key]
                continue
            del section[key]
            if group is Group.CHANGES_NOTHING:
                if not fits(value, kind):
                    problems[path] = f"{path} is {shown(value)}: it must be {KINDS[kind][1]}"
                elif value is not None and value != ONLY.get(path, value):
                    must = str(ONLY[path]).lower()
                    problems[path] = f"{path} is {shown(value)}: it must be {must}, or left out, because {does}"
                else:
                    ignored.append(path)
            elif value is False and path in FALSE_IS_A_CHOICE or not is_off(value) and (value not in OFF.get(path, ()) or isinstance(value, bool)):
                problems[path] = f"{path} is {group.value}: {does}"

    visit(given, "")
    for section in BY_TYPE:
        sort_out_type(given, section, problems)
    return ignored


def sort_out_type(given: dict, section: str, problems: dict[str, str]) -> None:
    """Give the type of an optimizer or a schedule its spelling, as "adam" is Adam; or refuse one that is known."""
    path = f"{section}.type"
    name = get(given, path)
    if not isinstance(name, str):
        return
    spelled = {each.lower(): each for each in types(section)}
    refused = {known.lower(): key for known, key in KEYS.items() if known.startswith(f"{path}.")}
    key = refused.get(f"{path}.{name}".lower())
    given[section]["type"] = spelled.get(name.lower(), name)
    if key is not None:
        problems[path] = f"{path} is {name!r}, which is {key.group.value}: {key.does}"
        del given[section]


SECTIONS = {path[: path.rindex(".") + 1] for path in WORKS if "." in path}
OFF = {"zero_optimization.mics_shard_size": [-1], "tensor_parallel": [{"autotp_size": 0}, {"autotp_size": 1}],
       "expert_parallel.expert_tensor_parallel_size": [1], "expert_parallel.route_scale": [1.0],
       **{f"expert_parallel.{key}": ["auto"] for key in ("routed_scaling_factor", "score_apply", "score_func", "top_k")}}


def types(section: str) -> list[str]:
    return [choice["properties"]["type"]["const"] for choice in choices(section)]


def fits(value: object, kind: str) -> bool:
    """Is a key that changes nothing of its type? A null is as good as leaving it out."""
    if value is None:
        return True
    if kind == "integer" and isinstance(value, float):
        return value.is_integer() or math.isinf(value)
    if kind == "boolean" and isinstance(value, int):
        return value in SWITCHES
    return isinstance(value, KINDS[kind][0]) and (isinstance(value, bool) == (kind == "boolean"))


def check(given: dict, problems: dict[str, str]) -> ConfigFile:
    """The config without the keys that are wrong, each of which gets a sentence."""
    while True:
        try:
            return ConfigFile.model_validate(given)
        except ValidationError as error:
            for keys, sentence in by_keys(error, given).items():
                # A wrong value that was taken out must not become a missing one.
                problems.setdefault(".".join(map(str, keys)), sentence)
                if not take_out(given, keys):
                    take_out(given, keys[:1])  # without what is missing the whole section means nothing


def check_section(section: str, name: str, params: dict) -> None:
    """Raises BadInput where a section with this type could not have these parameters. A tuple is as good as a list."""
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in params.items()}
    problems: dict[str, str] = {}
    checked = check({section: {"type": name, "params": listed}}, problems)
    problems |= broken(checked, set(problems))
    if problems:
        raise BadInput("\n".join(f"{name}: {sentence.replace(f'{section}.params.', '')}" for sentence in problems.values()))


def take_out(given: dict, keys: tuple) -> bool:
    """Remove the key to which these lead. Was it there?"""
    *sections, last = keys
    for key in sections:
        given = given.get(key, {})
    there = [key for key in given if key == last or str(key) == str(last)]
    for key in there:
        del given[key]
    return bool(there)

