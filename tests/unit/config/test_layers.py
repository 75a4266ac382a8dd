import re
from pathlib import Path

import pytest

from penstock.config import (
    SETTINGS,
    Address,
    CloudSection,
    Config,
    FlagSetting,
    Loaded,
    S3Section,
    all_settings,
    load,
    read_value,
)
from penstock.model.errors import ConfigError

INTERVAL = "storage.wal.fsync_interval_ms"
INTERVAL_VARIABLE = "PENSTOCK__STORAGE__WAL__FSYNC_INTERVAL_MS"

WHOLE_FILE = """\
data: /srv/penstock
storage:
  mode: wal_cloud
  wal:
    dir: /srv/wal
    fsync_interval_ms: 5
    retention:
      min_minutes: 60
      min_bytes: 107374182400   # 100 GiB
  uploader:
    interval_seconds: 10
    max_batch_bytes: 8388608
    rotation:
      max_object_bytes: 134217728
      max_object_seconds: 300
  cloud:
    backend: s3
    root: s3://my-bucket/penstock
    s3:
      region: us-east-1
      endpoint: https://s3.example.com
      access_key: ${ACCESS}
      secret_key: ${SECRET}
    gcs:
      bucket: my-bucket
      credential_file: ${HOME}/key.json
  etcd:
    endpoints:
      - http://127.0.0.1:2379
      - http://${PEER}:2379
    namespace: /penstock
"""
WHOLE_ENVIRONMENT = {"ACCESS": "AKIA1", "SECRET": "hunter2", "HOME": "/home", "PEER": "b"}


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _refused(
    file: Path | None, environ: dict[str, str] | None = None, overrides: tuple[str, ...] = ()
) -> str:
    """The error message of a load, which must be one line."""
    with pytest.raises(ConfigError) as caught:
        load(file, environ or {}, overrides)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def test_without_layers_all_settings_are_defaults() -> None:
    assert load(None, {}, ()) == Loaded(Config(), dict.fromkeys(SETTINGS, "default"))


@pytest.mark.feature("T27")
def test_a_whole_file_is_read_with_its_variables_expanded(tmp_path: Path) -> None:
    config = load(_file(tmp_path, WHOLE_FILE), WHOLE_ENVIRONMENT, ()).config
    assert {
        key: read_value(config, key)
        for key in SETTINGS
        if read_value(config, key) != read_value(Config(), key)
    } == {
        "data": "/srv/penstock",
        "storage.mode": "wal_cloud",
        "storage.wal.dir": "/srv/wal",
        "storage.wal.fsync_interval_ms": 5,
        "storage.cloud.backend": "s3",
        "storage.cloud.root": "s3://my-bucket/penstock",
        "storage.cloud.s3.region": "us-east-1",
        "storage.cloud.s3.endpoint": "https://s3.example.com",
        "storage.cloud.s3.access_key": "AKIA1",
        "storage.cloud.s3.secret_key": "hunter2",
        "storage.cloud.gcs.bucket": "my-bucket",
        "storage.cloud.gcs.credential_file": "/home/key.json",
        "storage.etcd.endpoints": ("http://127.0.0.1:2379", "http://b:2379"),
    }


def test_each_layer_overrides_earlier_ones_and_is_named_as_the_origin(tmp_path: Path) -> None:
    file = _file(tmp_path, "storage:\n  wal:\n    fsync_interval_ms: 1\n")
    environ = {INTERVAL_VARIABLE: "2", "PENSTOCK_URL": "not a setting"}
    sets, flags = (f"{INTERVAL}=3", f"{INTERVAL}=4"), (FlagSetting("--interval", INTERVAL, "5"),)
    steps = [
        (load(None, {}, ()), 0, "default"),
        (load(file, {}, ()), 1, f"file {file} line 3"),
        (load(file, environ, ()), 2, f"environment {INTERVAL_VARIABLE}"),
        (load(file, environ, sets), 4, "--set"),
        (load(file, environ, sets, flags), 5, "--interval"),
    ]
    for loaded, value, origin in steps:
        assert (read_value(loaded.config, INTERVAL), loaded.origins[INTERVAL]) == (value, origin)


def test_a_value_with_an_equals_sign_is_kept_whole() -> None:
    config = load(None, {}, ("storage.cloud.s3.secret_key=a=b==",)).config
    assert config.storage.cloud.s3.secret_key == "a=b=="


def test_a_list_outside_the_file_is_separated_by_commas() -> None:
    config = load(None, {"PENSTOCK__STORAGE__ETCD__ENDPOINTS": "http://a:1,http://b:2"}, ()).config
    assert config.storage.etcd.endpoints == ("http://a:1", "http://b:2")


def test_a_listener_can_have_one_address_or_a_list_in_every_layer(tmp_path: Path) -> None:
    both = (Address("127.0.0.1", 80), Address("::1", 81))
    text = "127.0.0.1:80, [::1]:81"
    for yaml in (f"'{text}'", "['127.0.0.1:80', '[::1]:81']"):
        file = _file(tmp_path, f"nats:\n  listen: {yaml}\n")
        assert load(file, {}, ()).config.nats.listen == both
    assert load(None, {"PENSTOCK__GRPC__LISTEN": text}, ()).config.grpc.listen == both
    assert (
        load(None, {}, (), [FlagSetting("--http", "http.listen", text)]).config.http.listen == both
    )


def test_an_invalid_address_is_refused_with_the_reason(tmp_path: Path) -> None:
    rule = "must be HOST:PORT with a port from 0 to 65535, or a list of these"
    assert _refused(None, {}, ("http.listen=127.0.0.1:80,[fe80::1%eth0]:80",)) == (
        f"http.listen is '127.0.0.1:80,[fe80::1%eth0]:80' (--set) but {rule}: "
        "zone ids, such as that of 'fe80::1%eth0', are not supported"
    )
    file = _file(tmp_path, "http:\n  listen: []\n")
    assert _refused(file) == (
        f"http.listen is [] (file {file} line 2) but {rule}: the list is empty"
    )


def test_an_address_is_read_into_host_and_port() -> None:
    config = load(None, {}, ("http.listen=[::1]:0",)).config
    assert config.http.listen == (Address("::1", 0),)


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "storage:\n", "storage:\n  wal: ~\n", "data:\n"]
)
def test_an_empty_file_section_or_value_leaves_the_defaults(tmp_path: Path, text: str) -> None:
    assert load(_file(tmp_path, text), {}, ()).config == Config()


def test_text_that_looks_like_another_type_stays_text(tmp_path: Path) -> None:
    file = _file(
        tmp_path, "storage: {cloud: {root: 2024-99-99, s3: {region: no, access_key: 007}}}"
    )
    cloud = load(file, {}, ()).config.storage.cloud
    assert (cloud.root, cloud.s3.region, cloud.s3.access_key) == ("2024-99-99", "no", "007")


def test_a_doubled_dollar_keeps_a_reference_as_it_is(tmp_path: Path) -> None:
    file = _file(tmp_path, "data: a$${B}/${B}/$B/$$\n")
    assert load(file, {"B": "b"}, ()).config.data == "a${B}/b/$B/$$"


def test_the_value_of_a_variable_is_not_expanded_again(tmp_path: Path) -> None:
    file = _file(tmp_path, "data: ${A}\n")
    assert load(file, {"A": "${B}", "B": "b"}, ()).config.data == "${B}"


def test_a_number_may_come_from_a_variable(tmp_path: Path) -> None:
    file = _file(tmp_path, "storage: {wal: {fsync_interval_ms: '${MS}'}}\n")
    assert load(file, {"MS": "7"}, ()).config.storage.wal.fsync_interval_ms == 7


@pytest.mark.feature("T27")
def test_an_unset_variable_is_named_with_the_key_that_needs_it(tmp_path: Path) -> None:
    file = _file(tmp_path, "storage:\n  cloud:\n    s3:\n      secret_key: ${SECRET}\n")
    assert _refused(file) == (
        f"storage.cloud.s3.secret_key (file {file} line 4) needs the environment variable SECRET, "
        "which is not set"
    )


@pytest.mark.parametrize("text", ["data: ${\n", "data: a${}b\n", "data: ${A-b}\n", "data: ${1}\n"])
def test_a_broken_reference_is_refused(tmp_path: Path, text: str) -> None:
    file = _file(tmp_path, text)
    assert _refused(file) == (
        f"data (file {file} line 1) has a ${{ without a variable's name and }}; "
        "write $${ for a plain one"
    )


@pytest.mark.feature("T27")
def test_an_unknown_key_in_the_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = _file(tmp_path, "storage:\n  wal:\n    fsync_interval: 5\n")
    assert _refused(file) == (
        f"unknown setting storage.wal.fsync_interval (file {file} line 3); did you mean {INTERVAL}?"
    )


@pytest.mark.feature("T27")
def test_an_unknown_key_anywhere_else_is_named_with_its_origin() -> None:
    assert _refused(None, {"PENSTOCK__HTTP__LISTN": "x"}) == (
        "unknown setting http.listn (environment PENSTOCK__HTTP__LISTN); did you mean http.listen?"
    )
    assert _refused(None, {}, ("fsync_interval_ms=5",)) == (
        f"unknown setting fsync_interval_ms (--set); did you mean {INTERVAL}?"
    )
    assert _refused(None, {}, ("zzz=1",)) == "unknown setting zzz (--set)"


def test_an_unknown_section_is_named_whole(tmp_path: Path) -> None:
    file = _file(tmp_path, "zzz:\n  yyy: 1\n")
    assert _refused(file) == f"unknown setting zzz (file {file} line 1)"


def test_a_value_for_a_section_is_refused(tmp_path: Path) -> None:
    assert _refused(None, {}, ("storage.wal=1",)) == (
        "storage.wal (--set) is a section; set what is in it, such as storage.wal.dir"
    )
    file = _file(tmp_path, "storage:\n  wal: 5\n")
    assert _refused(file) == f"storage.wal (file {file} line 2) must hold settings by name"


@pytest.mark.feature("T27")
@pytest.mark.parametrize("value", ["-1", "10001", "soon", "5.5", ""])
def test_a_value_out_of_its_range_is_named_with_key_and_range(value: str) -> None:
    assert _refused(None, {}, (f"{INTERVAL}={value}",)) == (
        f"{INTERVAL} is '{value}' (--set) but must be a whole number from 0 to 10000"
    )


def test_a_value_that_a_later_layer_overrides_is_checked_too() -> None:
    assert _refused(None, {INTERVAL_VARIABLE: "-1"}, (f"{INTERVAL}=5",)) == (
        f"{INTERVAL} is '-1' (environment {INTERVAL_VARIABLE}) "
        "but must be a whole number from 0 to 10000"
    )


def test_a_nested_value_of_a_plain_setting_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, "http:\n  listen: {host: localhost}\n")
    assert _refused(file) == (
        f"http.listen is nested (file {file} line 2) "
        "but must be HOST:PORT with a port from 0 to 65535, or a list of these"
    )


def test_a_wrong_secret_is_not_repeated(tmp_path: Path) -> None:
    file = _file(tmp_path, "storage: {cloud: {s3: {secret_key: [hunter2]}}}\n")
    assert _refused(file) == (
        f"storage.cloud.s3.secret_key is *** (file {file} line 1) but must be text"
    )


def test_a_repeated_key_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, "log:\n  level: info\n  level: debug\n")
    assert _refused(file) == f"log.level (file {file} line 3) is given twice"


def test_an_override_without_a_value_is_refused() -> None:
    assert _refused(None, {}, ("log.level",)) == "--set log.level must be KEY=VALUE"


def test_a_file_that_is_missing_or_not_a_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "none.yaml"
    assert _refused(missing) == f"configuration file {missing}: no such file or directory"
    assert _refused(tmp_path) == f"configuration file {tmp_path}: is a directory"


def test_a_file_that_is_not_yaml_is_named_with_the_line(tmp_path: Path) -> None:
    file = _file(tmp_path, "data: a\nlog: [\n")
    assert _refused(file).startswith(f"configuration file {file} is not YAML at line 3: ")


def test_a_file_of_several_documents_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, "data: a\n---\ndata: b\n")
    assert _refused(file).startswith(f"configuration file {file} is not YAML")


def test_a_file_that_is_a_list_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, "- data\n")
    assert _refused(file) == f"the top (file {file} line 1) must hold settings by name"


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_bytes(b"data: \xff\n")
    assert _refused(file) == f"configuration file {file} is not UTF-8"


@pytest.mark.feature("F35")
def test_stores_are_named_in_every_layer_and_have_the_settings_of_the_cloud(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "storage:\n  stores:\n    archive:\n      backend: s3\n      s3: {region: here}\n"
        "    empty:\n"
    )
    loaded = load(
        file, {"PENSTOCK__STORAGE__STORES__ARCHIVE__ROOT": "s3://a"}, ["storage.stores.b.root=/b"]
    )
    stores = loaded.config.storage.stores
    assert stores == {
        "archive": CloudSection(backend="s3", root="s3://a", s3=S3Section(region="here")),
        "b": CloudSection(root="/b"),
    }
    assert loaded.origins["storage.stores.archive.backend"] == f"file {file} line 4"
    assert loaded.origins["storage.stores.b.backend"] == "default"
    assert read_value(loaded.config, "storage.stores.archive.s3.region") == "here"
    assert loaded.config.storage.cloud == CloudSection()
    assert loaded.origins.keys() == all_settings(loaded.config).keys()


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        (
            "storage.stores.a.rooot=x",
            "unknown setting storage.stores.a.rooot (--set); did you mean storage.stores.a.root?",
        ),
        ("storage.stores.a.backend=x", "storage.stores.a.backend is 'x' (--set) but must be one"),
        ("storage.stores.A.root=x", "unknown setting storage.stores.A.root (--set)"),
        (
            "storage.stores.a=x",
            "storage.stores.a (--set) is a section; set what is in it, such as storage.stores.a.b",
        ),
        (
            "storage.stores=x",
            "storage.stores (--set) is a section; set what is in it, such as storage.stores.NAME.",
        ),
    ],
)
def test_a_wrong_setting_of_a_store_is_named(override: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(complaint)):
        load(None, {}, [override])
