"""Reads the layers of the configuration, each over the one before.

Defaults, the YAML file, `PENSTOCK__SECTION__KEY` in the environment, `--set section.key=value`,
flags of their own. Every value given is checked, also one that a later layer replaces. Whatever is
wrong is one `ConfigError` of one line that names the key, the value and where it stands.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from penstock.config.rules import SECRET_SHOWN, Raw
from penstock.config.settings import (
    SETTINGS,
    STORES,
    STRUCTURED,
    Cloud,
    Config,
    pattern,
    store_name,
    store_settings,
)
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
    """The configuration, and for every key the layer that decided it."""

    config: Config
    origins: Mapping[str, str]


class Flag(NamedTuple):
    """A setting given by a command-line flag of its own, such as `--data`."""

    name: str
    key: str
    value: str


class _Given(NamedTuple):
    key: str
    raw: Raw
    origin: str


def load(
    file: Path | None,
    environ: Mapping[str, str],
    overrides: Sequence[str],
    flags: Sequence[Flag] = (),
) -> Loaded:
    """Read every layer once; raises ConfigError."""
    values = {key: facts.default for key, facts in SETTINGS.items()}
    origins = dict.fromkeys(SETTINGS, "default")
    for given in _layers(file, environ, overrides, flags):
        store = store_name(given.key)
        if store is not None and given.key not in values:
            fresh = {key: facts.default for key, facts in store_settings(store).items()}
            values |= fresh
            origins |= dict.fromkeys(fresh, "default")
        values[given.key] = _checked(given)
        origins[given.key] = given.origin
    return Loaded(_build(Config, "", values), origins)


def _layers(
    file: Path | None, environ: Mapping[str, str], overrides: Sequence[str], flags: Sequence[Flag]
) -> Iterator[_Given]:
    if file is not None:
        yield from _from_file(file, environ)
    yield from _from_environment(environ)
    yield from (_from_override(override) for override in overrides)
    yield from (_Given(flag.key, flag.value, flag.name) for flag in flags)


def _checked(given: _Given) -> object:
    facts = SETTINGS.get(pattern(given.key))
    if facts is None:
        raise ConfigError(_unknown(given.key, given.origin))
    try:
        return facts.parse(given.raw)
    except ValueError:
        shown = "nested" if given.raw is None else repr(given.raw)
        raise ConfigError(
            f"{given.key} is {SECRET_SHOWN if facts.secret else shown} ({given.origin}) "
            f"but must be {facts.rule}"
        ) from None


def _build(kind: Any, prefix: str, values: Mapping[str, object]) -> Any:
    parts: dict[str, Any] = {}
    for item in fields(kind):
        key = prefix + item.name
        if item.metadata:
            parts[item.name] = values[key]
        elif key == STORES:
            names = dict.fromkeys(filter(None, map(store_name, values)))
            parts[item.name] = {name: _build(Cloud, f"{key}.{name}.", values) for name in names}
        else:
            parts[item.name] = _build(item.type, f"{key}.", values)
    return kind(**parts)


def _unknown(key: str, origin: str) -> str:
    if pattern(key) in _SECTIONS:
        known = [*SETTINGS, *store_settings(store_name(key) or "NAME")]
        example = next(one for one in known if one.startswith(f"{key}."))
        return f"{key} ({origin}) is a section; set what is in it, such as {example}"
    return f"unknown setting {key} ({origin}){_suggestion(key)}"


def _suggestion(key: str) -> str:
    tail, store = key.rpartition(".")[2], store_name(key)
    known = SETTINGS if store is None else store_settings(store)
    same_tail = [one for one in known if one.rpartition(".")[2] == tail]
    cutoff = 0.0 if same_tail else 0.6
    near = difflib.get_close_matches(key, same_tail or known, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Given]:
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            yield _Given(key, environ[name], f"environment {name}")


def _from_override(override: str) -> _Given:
    key, equals, value = override.partition("=")
    if not equals:
        raise ConfigError(f"--set {override} must be KEY=VALUE")
    return _Given(key, value, "--set")


def _from_file(path: Path, environ: Mapping[str, str]) -> Iterator[_Given]:
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
        raise ConfigError(f"configuration file {path}: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"configuration file {path} is not UTF-8") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"configuration file {path} is not YAML{_place(error)}") from None
    seen: set[str] = set()
    for given in _from_node(root, "", f"file {path}"):
        if given.key in seen:
            raise ConfigError(f"{given.key} ({given.origin}) is given twice")
        seen.add(given.key)
        yield given._replace(raw=_expanded(given, environ))


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    line = "" if mark is None else f" at line {mark.line + 1}"
    problem = getattr(error, "problem", None)
    return f"{line}: {problem}" if problem else line


def _from_node(node: yaml.Node | None, prefix: str, file: str) -> Iterator[_Given]:
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
            yield _Given(key, text, f"{file} line {key_node.start_mark.line + 1}")
        elif pattern(key) in _SECTIONS:
            yield from _from_node(value_node, f"{key}.", file)
        elif not _is_null(value_node):
            yield _Given(key, _raw(value_node), f"{file} line {key_node.start_mark.line + 1}")


def _is_null(node: yaml.Node | None) -> bool:
    return node is None or node.tag == _NULL


def _raw(node: yaml.Node) -> Raw:
    if isinstance(node, yaml.ScalarNode):
        return str(node.value)
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    if all(isinstance(item, yaml.ScalarNode) for item in items):
        return [str(item.value) for item in items]
    return None


def _expanded(given: _Given, environ: Mapping[str, str]) -> Raw:
    def variable(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise ConfigError(
                f"{given.key} ({given.origin}) has a ${{ without a variable's name and }}; "
                "write $${ for a plain one"
            )
        if match[1] not in environ:
            raise ConfigError(
                f"{given.key} ({given.origin}) needs the environment variable {match[1]}, "
                "which is not set"
            )
        return environ[match[1]]

    if isinstance(given.raw, list):
        return [_REFERENCE.sub(variable, item) for item in given.raw]
    return given.raw and _REFERENCE.sub(variable, given.raw)
