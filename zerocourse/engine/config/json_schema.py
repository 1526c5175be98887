"""The JSON schema of a ds_config, by which editors complete keys, explain them and underline mistakes.

It is what the models of `schema` say, with the sentences of `keys` as descriptions, and with the keys that change
nothing. Keys that are refused may stand there switched off.
"""

from .auto import AUTO, FROM_ARGS, LEFT_OUT
from .keys import FALSE_IS_A_CHOICE, KEYS, ONLY, Group
from .load import OFF
from .schema import ConfigFile

LEFT_OUT_OF_IT = {"$ref", "$defs", "title", "discriminator", "description"}  # of what pydantic says
COMMENTS = "^([_#$]|//|[Cc][Oo][Mm][Mm][Ee][Nn][Tt][Ss]?$)"  # the names that `old_forms` leaves out
SWITCHED_OFF = [{"enum": [None, False]}, {"type": "object", "maxProperties": 0},
                {"type": "object", "properties": {"enabled": {"const": False}}, "required": ["enabled"]},
                {"type": "object", "properties": {"device": {"enum": ["none", None]}}, "required": ["device"]}]


def json_schema() -> dict:
    """The schema, in draft 2020-12, without references."""
    schema = ConfigFile.model_json_schema()
    about = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "ds_config.json"}
    return about | expanded(schema, "", schema["$defs"])


def expanded(part: dict, path: str, definitions: dict) -> dict:
    """A part of pydantic's schema with its references filled in, and with what the table of keys adds."""
    if "$ref" in part:
        part = definitions[part["$ref"].rpartition("/")[2]] | part
    part = {key: value for key, value in part.items() if key not in LEFT_OUT_OF_IT}
    for union in {"anyOf", "oneOf"} & part.keys():
        part[union] = [expanded(each, path, definitions) for each in part[union]]
    if "properties" in part:
        prefix = f"{path}." if path else ""
        inside = {name: described(expanded(each, prefix + name, definitions), prefix + name)
                  for name, each in part["properties"].items()}
        of_table = [key for key, each in KEYS.items()
                    if key.rpartition(".")[0] == path and each.group is not Group.WORKS]
        part["patternProperties"] = {COMMENTS: {}}
        part["properties"] = inside | {key.removeprefix(prefix): unserved(key) for key in of_table}
    return part


def described(part: dict, path: str) -> dict:
    """With its sentence, and with the other ways to write its value that `load` accepts."""
    also: list = [AUTO] if path in FROM_ARGS or path in LEFT_OUT else []
    if "properties" in part or "oneOf" in part or any("oneOf" in each for each in part.get("anyOf", ())):
        also = [None, False]  # a section that is not there
    default = {"default": part.pop("default")} if "default" in part else {}
    if also:
        part = {"anyOf": [*part.get("anyOf", [part]), {"enum": also}]}
    return {"description": KEYS[path].does} | default | part


def unserved(path: str) -> dict:
    """The schema of a key that changes nothing, or that is refused."""
    key = KEYS[path]
    about = {"description": f"{key.group.value}: {key.does}"}
    if path in ONLY:
        return about | {"enum": [ONLY[path], int(ONLY[path]), None, AUTO]}
    also = [None, 0, 1] if key.kind == "boolean" else [None]
    if key.group is Group.CHANGES_NOTHING:
        return about | {"anyOf": [{"type": key.kind}, {"enum": [*also, AUTO]}]}
    if key.group is Group.TRANSLATED:
        return about | {"deprecated": True, "anyOf": [{"type": key.kind}, {"enum": also}]}
    off = [{"const": None}, *SWITCHED_OFF[1:]] if path in FALSE_IS_A_CHOICE else SWITCHED_OFF
    return about | {"deprecated": True, "anyOf": off + [{"const": value} for value in OFF.get(path, ())]}
