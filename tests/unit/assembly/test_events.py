import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from penstock.assembly.events import configure_events


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    # pytest's own handlers would be closed by the reconfiguration; hide them from it.
    root.handlers = []
    yield
    structlog.reset_defaults()
    root.handlers, root.level = handlers, level


def _lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [json.loads(line) for line in captured.err.splitlines()]


def test_an_event_is_one_json_line_with_its_facts_as_fields(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_events("info", "json", [])
    structlog.get_logger().warning("tail cut", topic="a/b/c", first_offset=5, object_id=None)
    (line,) = _lines(capsys)
    assert list(line) == ["time", "level", "event", "topic", "first_offset", "object_id"]
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "event": "tail cut",
        "topic": "a/b/c",
        "first_offset": 5,
        "object_id": None,
    }


def test_events_below_the_level_are_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    configure_events("warning", "json", [])
    structlog.get_logger().info("quiet")
    logging.getLogger("library").info("quiet")
    structlog.get_logger().warning("loud")
    assert [line["event"] for line in _lines(capsys)] == ["loud"]


def test_events_of_libraries_have_the_form_of_our_events(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_events("info", "json", [])
    logging.getLogger("library").error("lost %d", 3)
    (line,) = _lines(capsys)
    assert (line["level"], line["event"]) == ("error", "lost 3")


def test_the_text_format_has_readable_lines(capsys: pytest.CaptureFixture[str]) -> None:
    configure_events("info", "text", [])
    structlog.get_logger().info("ready", http="there")
    line = capsys.readouterr().err
    assert "ready" in line
    assert "http=there" in line
    assert "\x1b" not in line


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("secret", ["hunter2", 'quo"te', "back\\slash", "new\nline", "käse"])
def test_a_secret_is_never_written(
    capsys: pytest.CaptureFixture[str], form: str, secret: str
) -> None:
    configure_events("info", form, [secret, secret[:4]])
    log = structlog.get_logger()
    log.info(f"said {secret}", plain=secret, nested={"deep": [secret]}, in_repr=repr(secret))
    logging.getLogger("library").warning("heard %s and %r", secret, secret)
    try:
        raise ValueError(secret)
    except ValueError:
        log.exception("failed")
    written = capsys.readouterr().err
    assert "said ***" in written
    assert secret not in written
    assert json.dumps(secret)[1:-1] not in written
    assert repr(secret)[1:-1] not in written


def test_a_traceback_does_not_show_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    configure_events("info", "text", [])
    local = "visible only by its value: " + "x" * 8
    try:
        raise ValueError("failed with " + str(len(local)))
    except ValueError:
        structlog.get_logger().exception("failed")
    written = capsys.readouterr().err
    assert "ValueError: failed with 35" in written
    assert "xxxxxxxx" not in written
