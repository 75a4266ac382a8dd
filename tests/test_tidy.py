"""Reads the source as a strict reviewer would: sizes, docstrings, leftovers, and names."""

import ast
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "src"
PACKAGE: Final = SOURCE / "penstock"
MODULE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 60

TESTED_ELSEWHERE: Final = {
    "assembly/broker.py": "tests/integration/test_serve.py",
    "assembly/fetch_node.py": "tests/integration/test_fetch_node.py",
    "assembly/nats_server.py": "tests/integration/test_nats_server.py",
    "assembly/nats_streams.py": "tests/integration/test_nats_server.py",
    "assembly/stopping.py": "tests/integration/test_serve.py",
    "cli/broker.py": "tests/integration/test_cli.py",
    "cli/channel.py": "tests/integration/channels/test_commands.py",
    "cli/consumer.py": "tests/integration/channels/test_commands.py",
    "cli/dlq.py": "tests/integration/channels/test_commands.py",
    "cli/fetch.py": "tests/integration/test_cli.py",
    "cli/get.py": "tests/integration/test_cli.py",
    "cli/job.py": "tests/integration/channels/test_commands.py",
    "cli/namespace.py": "tests/integration/test_cli.py",
    "cli/pipeline.py": "tests/spark/test_pipelines.py",
    "cli/producer.py": "tests/integration/channels/test_commands.py",
    "cli/push.py": "tests/integration/test_cli.py",
    "cli/serve.py": "tests/integration/test_serve.py",
    "cli/tail.py": "tests/integration/test_cli.py",
    "cli/tenant.py": "tests/integration/test_cli.py",
    "cli/topic.py": "tests/integration/test_cli.py",
    "delivery/channels/broadcast.py": "tests/integration/channels/test_broadcast.py",
    "delivery/channels/entities.py": "tests/integration/channels/test_entities.py",
    "delivery/channels/service.py": "tests/integration/channels/test_status.py",
    "delivery/channels/scheduled.py": "tests/integration/channels/test_broadcast.py",
    "doors/http/channels/access.py": "tests/integration/channels/test_jobs.py",
    "doors/http/channels/app.py": "tests/integration/channels/test_entities.py",
    "doors/http/channels/broadcast.py": "tests/integration/channels/test_broadcast.py",
    "doors/http/channels/dead_letters.py": "tests/integration/channels/test_jobs.py",
    "doors/http/channels/entities.py": "tests/integration/channels/test_entities.py",
    "doors/http/channels/extensions.py": "tests/integration/channels/test_push.py",
    "doors/http/channels/jobs.py": "tests/integration/channels/test_jobs.py",
    "doors/http/channels/messages.py": "tests/integration/channels/test_broadcast.py",
    "doors/http/channels/status.py": "tests/integration/channels/test_status.py",
    "metadata/etcd.py": "tests/conformance/metadata/test_etcd_faults.py",
    "spark/jvm.py": "tests/spark/test_stream.py",
    "spark/pipelines/compact.py": "tests/spark/test_compact.py",
    "spark/pipelines/latest.py": "tests/spark/test_pipelines.py",
    "spark/pipelines/publish.py": "tests/spark/test_tables.py",
    "spark/pipelines/replay.py": "tests/spark/test_pipelines.py",
    "spark/pipelines/report.py": "tests/spark/test_report.py",
    "spark/pipelines/statistics.py": "tests/spark/test_report.py",
    "spark/pipelines/tables.py": "tests/spark/test_tables.py",
    "spark/source.py": "tests/spark/test_read.py",
    "spark/start.py": "tests/spark/test_stream.py",
    "spark/tables.py": "tests/spark/test_read.py",
    "spark/writer.py": "tests/spark/test_write.py",
}
"""Modules that only a real process can show to work, and the tests that run one."""

VAGUE_NAMES: Final = {"utils", "util", "common", "core", "base", "helpers", "services", "misc"}

LEFTOVERS: Final = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
MACHINE: Final = re.compile(
    r"/(?:work|root|opt)/|/(?:home|Users)/[a-z]+/"
    r"|\b(?:pypi\.org|pythonhosted\.org|npmjs\.(?:org|com)|docker\.io|ghcr\.io)\b"
)

MODULES: Final = sorted(SOURCE.rglob("*.py"))


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _does_something(path: Path) -> bool:
    """Neither a package's list of names nor a module of constants alone."""
    defines = any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(_tree(path))
    )
    return defines and path.name != "__init__.py"


def _text_files() -> Iterator[tuple[Path, str]]:
    """Everything that is or would be committed and is text, but for this file's own patterns."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        with suppress(UnicodeDecodeError, FileNotFoundError):
            if path != Path(__file__):
                yield path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_is_too_long_to_have_one_job(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MODULE_LINES_MAX


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_function_is_too_long_to_be_read_at_once(path: Path) -> None:
    long = [
        f"{node.name} has {lines} lines"
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not long


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_its_job(path: Path) -> None:
    empty_package = path.name == "__init__.py" and not _tree(path).body
    assert empty_package or ast.get_docstring(_tree(path))


@pytest.mark.parametrize(
    "path", [*filter(_does_something, sorted(PACKAGE.rglob("*.py")))], ids=_name
)
def test_every_module_has_its_tests_in_the_same_place(path: Path) -> None:
    module = path.relative_to(PACKAGE)
    mirror = f"tests/unit/{module.parent / f'test_{module.name}'}"
    assert (ROOT / TESTED_ELSEWHERE.get(str(module), mirror)).is_file()


def test_every_exception_to_that_place_is_still_needed() -> None:
    for module in TESTED_ELSEWHERE:
        assert (PACKAGE / module).is_file(), module
        assert not (
            ROOT / "tests/unit" / Path(module).with_name(f"test_{Path(module).name}")
        ).exists()


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_no_module_has_a_name_that_means_nothing(path: Path) -> None:
    assert not VAGUE_NAMES.intersection(path.relative_to(SOURCE).with_suffix("").parts)


def test_nothing_is_left_over_in_the_code() -> None:
    found = [
        f"{_name(path)}:{number}"
        for path, text in _text_files()
        if path.suffix == ".py"
        for number, line in enumerate(text.splitlines(), 1)
        if LEFTOVERS.search(line)
    ]
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_only_the_command_line_prints(path: Path) -> None:
    prints = [
        node.lineno
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Name) and node.id == "print"
    ]
    assert not prints or path.is_relative_to(PACKAGE / "cli")


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    found = [
        f"{_name(path)}:{number}: {line.strip()}"
        for path, text in _text_files()
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert not found


def test_readme_and_makefile_name_the_same_targets() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    rules = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z]+)`|^make ([a-z]+)", readme, re.MULTILINE))
    assert rules == set(phony[1].split())
    assert rules == {first or second for first, second in named}


def test_the_makefile_fits_on_one_screen() -> None:
    assert len((ROOT / "Makefile").read_text(encoding="utf-8").splitlines()) <= 50
