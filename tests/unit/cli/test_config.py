import json
from pathlib import Path

from click.testing import CliRunner, Result

from penstock.cli import cli
from penstock.cli.config import configuration_page
from penstock.config import SETTINGS

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"


def _show(*arguments: str, **environ: str) -> Result:
    result = CliRunner().invoke(cli, ["config", "show", *arguments], env=dict(environ))
    assert result.exit_code == 0
    return result


def test_the_configuration_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == configuration_page(), (
        "run `penstock config docs > docs/configuration.md`"
    )


def test_docs_prints_the_page() -> None:
    assert CliRunner().invoke(cli, ["config", "docs"]).output == configuration_page()


def test_show_has_a_line_for_every_setting_with_value_and_origin(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text("log:\n  level: debug\n")
    output = _show(
        "--config", str(file), "--set", "data=there", PENSTOCK__HTTP__LISTEN="[::1]:0"
    ).output
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in output.splitlines()}
    assert rows.keys() == SETTINGS.keys()
    assert rows["log.level"] == ["debug", f"file {file} line 2"]
    assert rows["http.listen"] == ["[::1]:0", "environment PENSTOCK__HTTP__LISTEN"]
    assert rows["data"] == ["there", "--set"]
    assert rows["storage.mode"] == ["local_only", "default"]
    assert rows["storage.wal.dir"] == ['""', "default"]


def test_show_json_has_every_setting_with_numbers_and_lists() -> None:
    shown = json.loads(_show("--json", "--set", "storage.etcd.endpoints=a,b").output)
    assert shown.keys() == SETTINGS.keys()
    assert shown["storage.etcd.endpoints"] == {"value": ["a", "b"], "origin": "--set"}
    assert shown["shutdown.drain_seconds"] == {"value": 10, "origin": "default"}
    assert shown["http.listen"] == {"value": ["127.0.0.1:8080"], "origin": "default"}
    assert shown["metadata"] == {"value": "127.0.0.1:7777", "origin": "default"}


def test_secrets_are_never_shown() -> None:
    for form in ([], ["--json"]):
        output = _show(
            *form,
            PENSTOCK__STORAGE__CLOUD__S3__SECRET_KEY="hunter2",
            PENSTOCK__CHANNELS__GATEWAY__SECRETS="hunter2,hunter2",
        ).output
        assert "hunter2" not in output
        assert "***" in output


def test_show_has_the_settings_of_named_stores_without_their_secrets() -> None:
    output = _show("--set", "storage.stores.a.s3.secret_key=hunter2").output
    rows = {line.split()[0]: line.split(maxsplit=2)[1:] for line in output.splitlines()}
    assert rows["storage.stores.a.s3.secret_key"] == ["***", "--set"]
    assert rows["storage.stores.a.backend"] == ["fs", "default"]
