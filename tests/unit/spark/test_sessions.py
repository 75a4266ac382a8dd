from pathlib import Path

import pytest

from penstock.spark import sessions
from penstock.spark.errors import OptionInvalid, SparkUnavailable


def _java(tmp_path: Path, version: str) -> Path:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return tmp_path


@pytest.mark.feature("S13")
def test_the_error_of_missing_java_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkUnavailable, match=r"which has no bin/java: install it .*openjdk-17"):
        sessions.session()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="there is no java: install it"):
        sessions.check_java()


@pytest.mark.feature("S13")
@pytest.mark.parametrize(("version", "shown"), [("1.8.0_392", "8"), ("11.0.2", "11")])
def test_an_old_java_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, shown: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, version)))
    with pytest.raises(SparkUnavailable, match=f"is Java {shown}: install"):
        sessions.check_java()


def test_java_17_and_later_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, "21.0.1")))
    sessions.check_java()


def test_a_setting_that_is_not_a_spark_setting_is_refused() -> None:
    with pytest.raises(OptionInvalid, match="'memory' is no Spark setting"):
        sessions.session("http://127.0.0.1:1", memory="2g")
