"""Reads the layers of the configuration; later layers override earlier ones.

The layers are the defaults, the YAML file, `PENSTOCK__SECTION__KEY` in the environment,
`--set section.key=value`, and flags of their own such as `--data`. Every value is checked, even if
a later layer overrides it. An error is a `ConfigError` of one line with key, value and layer.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from penstock.config.addresses import AddressInvalid
from penstock.config.rules import SECRET_SHOWN, Raw
from penstock.config.setting_keys import (
    SETTINGS,
    STORES,
    STRUCTURED,
    pattern,
    store_name,
    store_settings,
)
from penstock.config.settings import Config
from penstock.config.storage_settings import CloudSection
from penstock.model.errors import ConfigError

ENVIRONMENT_PREFIX: Final = "PENSTOCK__"

_SECTIONS: Final = {
    STORES,
    *(key[: dot.start()] for key in SETTINGS for dot in re.finditer(r"\.", key)),
}
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")
_NULL: Final = "tag:yaml.org,2002:null"


@dataclass(frozen=True, slots=True)
class Loaded:
    """The configuration, and the layer that every value comes from."""

    config: Config
    origins: Mapping[str, str]


class FlagSetting(NamedTuple):
    """A setting by a command-line flag of its own, such as `--data`."""

    name: str
    key: str
    value: str


class _Assignment(NamedTuple):
    key: str
    raw: Raw
    origin: str


def load(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Sequence[str],
    flags: Sequence[FlagSetting] = (),
) -> Loaded:
    """Read all layers; raises ConfigError."""
    values = {key: facts.default for key, facts in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    for assignment in _layers(file, environ, overrides, flags):
        store = store_name(assignment.key)
        if store is not None and assignment.key not in values:
            fresh = {key: facts.default for key, facts in store_settings(store).items()}
            values |= fresh
            origins |= dict.fromkeys(fresh, "default")
        values[assignment.key] = _checked(assignment)
        origins[assignment.key] = assignment.origin
    return Loaded(_build(Config, "", values), origins)


def _layers(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Sequence[str],
    flags: Sequence[FlagSetting],
) -> Iterator[_Assignment]:
    if file is not None:
        yield from _from_file(file, environ)
    yield from _from_environment(environ)
    yield from (_from_override(override) for override in overrides)
    yield from (_Assignment(flag.key, flag.value, flag.name) for flag in flags)


def _checked(assignment: _Assignment) -> object:
    facts = SETTINGS.get(pattern(assignment.key))
    if facts is None:
        raise ConfigError(_unknown(assignment.key, assignment.origin))
    try:
        return facts.parse(assignment.raw)
    except ValueError as error:
        shown = "nested" if assignment.raw is None else repr(assignment.raw)
        reason = f": {error}" if isinstance(error, AddressInvalid) else ""
        raise ConfigError(
            f"{assignment.key} is {SECRET_SHOWN if facts.secret else shown} ({assignment.origin}) "
            f"but must be {facts.rule}{reason}"
        ) from None


def _build(kind: Any, prefix: str, values: Mapping[str, object]) -> Any:
    parts: dict[str, Any] = {}
    for item in fields(kind):
        key = prefix + item.name
        if item.metadata:
            parts[item.name] = values[key]
        elif key == STORES:
            names = dict.fromkeys(filter(None, map(store_name, values)))
            parts[item.name] = {
                name: _build(CloudSection, f"{key}.{name}.", values) for name in names
            }
        else:
            parts[item.name] = _build(item.type, f"{key}.", values)
    return kind(**parts)


def _unknown(key: str, origin: str) -> str:
    if pattern(key) in _SECTIONS:
        known = [*SETTINGS, *store_settings(store_name(key) or "NAME")]
        example = next(name for name in known if name.startswith(f"{key}."))
        return f"{key} ({origin}) is a section; set what is in it, such as {example}"
    return f"unknown setting {key} ({origin}){_suggestion(key)}"


def _suggestion(key: str) -> str:
    tail, store = key.rpartition(".")[2], store_name(key)
    known = SETTINGS if store is None else store_settings(store)
    same_tail = [name for name in known if name.rpartition(".")[2] == tail]
    cutoff = 0.0 if same_tail else 0.6
    near = difflib.get_close_matches(key, same_tail or known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Assignment]:
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            yield _Assignment(key, environ[name], f"environment {name}")


def _from_override(override: str) -> _Assignment:
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError(f"--set {override} must be KEY=VALUE")
    return _Assignment(key, value, "--set")


def _from_file(path: Path, environ: Mapping[str, str]) -> Iterator[_Assignment]:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise ConfigError(f"configuration file {path}: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration file {path} is not YAML{_position_of(error)}") from None
    seen: set[str] = set()
    for assignment in _from_node(root, "", f"file {path}"):
        if assignment.key in seen:
            raise ConfigError(f"{assignment.key} ({assignment.origin}) is given twice")
        seen.add(assignment.key)
        yield assignment._replace(raw=_expanded(assignment, environ))


def _position_of(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f" at line {mark.line + 1}"
    problem = getattr(error, "problem", None)
    return f"{line}: {problem}" if problem else line


def _from_node(node: yaml.Node | None, prefix: str, file: str) -> Iterator[_Assignment]:
    if _is_null(node):
        return
    assert node is not None
    if not isinstance(node, yaml.MappingNode):
        place = f"{file} line {node.start_mark.line + 1}"
        raise ConfigError(f"{prefix.rstrip('.') or 'the top'} ({place}) must hold settings by name")
    for key_node, value_node in node.value:
        key = f"{prefix}{key_node.value}"
        if key in STRUCTURED and isinstance(value_node, yaml.MappingNode):
            text = yaml.serialize(value_node, Dumper=yaml.SafeDumper)
            yield _Assignment(key, text, f"{file} line {key_node.start_mark.line + 1}")
        elif pattern(key) in _SECTIONS:
            yield from _from_node(value_node, f"{key}.", file)
        elif not _is_null(value_node):
            yield _Assignment(key, _raw(value_node), f"{file} line {key_node.start_mark.line + 1}")


def _is_null(node: yaml.Node | None) -> bool:
    return node is None or node.tag == _NULL


def _raw(node: yaml.Node) -> Raw:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if all(isinstance(item, yaml.ScalarNode) for item in items):
        return [str(item.value) for item in items]
    return None


def _expanded(assignment: _Assignment, environ: Mapping[str, str]) -> Raw:
    where = f"{assignment.key} ({assignment.origin})"

    def variable(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise ConfigError(
                f"{where} has a ${{ without a variable's name and }}; write $${{ for a plain one"
            )
        if match[1] not in environ:
            raise ConfigError(
                f"{where} needs the environment variable {match[1]}, which is not set"
            )
        return environ[match[1]]

    if isinstance(assignment.raw, list):
        return [_REFERENCE.sub(variable, item) for item in assignment.raw]
    return assignment.raw and _REFERENCE.sub(variable, assignment.raw)
