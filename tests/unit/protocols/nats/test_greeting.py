"""INFO and CONNECT; the order of fields is that of nats-server."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocols.nats.greeting import (
    Credentials,
    Info,
    Options,
    connect_options,
    encode_info,
)

INFO = Info("ID", "lab", "2.15.1", 1, "", "", "127.0.0.1", 4222, True)


@pytest.mark.feature("P01")
def test_info_ends_with_a_space_and_omits_false_fields() -> None:
    assert encode_info(INFO) == (
        b'INFO {"server_id":"ID","server_name":"lab","version":"2.15.1","proto":1,'
        b'"git_commit":"","go":"","host":"127.0.0.1","port":4222,"headers":true} \r\n'
    )


@pytest.mark.feature("P01")
def test_info_has_its_fields_in_the_usual_order() -> None:
    full = msgspec.structs.replace(
        INFO,
        auth_required=True,
        max_payload=1,
        jetstream=True,
        client_id=2,
        client_ip="::1",
        ldm=True,
        api_lvl=5,
        connect_info=True,
        remote_account="$G",
    )
    names = (
        "server_id server_name version proto git_commit go host port headers auth_required "
        "max_payload jetstream client_id client_ip ldm connect_info remote_account api_lvl"
    )
    told = msgspec.json.decode(encode_info(full)[5:])
    assert list(told) == names.split()


@pytest.mark.feature("P01")
def test_without_options_a_client_is_verbose() -> None:
    assert connect_options(b"{}") == Options(
        verbose=True, pedantic=True, headers=False, no_responders=False, echo=True, protocol=0
    )


@pytest.mark.feature("P01")
def test_null_is_absent_and_unknown_fields_are_ignored() -> None:
    text = b'{"verbose":false,"user":null,"pass":"p","tls_required":{"x":[1]},"name":"n"}'
    assert connect_options(text) == Options(verbose=False, password="p", name="n")


@pytest.mark.feature("P19")
@pytest.mark.parametrize(
    "text",
    [
        b"{bad",
        b"[]",
        b"1",
        b"null",
        b'{"verbose":1}',
        b'{"user":[]}',
        b"\xff",
        b'{"a":1} x',
        b'{"name":"\xff"}',
        b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
)
def test_options_that_cannot_be_read_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the client is told nothing
        connect_options(text)


@pytest.mark.parametrize(
    ("credentials", "options", "allowed"),
    [
        (Credentials(), Options(), True),
        (Credentials(), Options(user="anyone", auth_token="any"), True),
        (Credentials("secret"), Options(auth_token="secret"), True),
        (Credentials("secret"), Options(auth_token="secre"), False),
        (Credentials("secret"), Options(), False),
        (Credentials("secret"), Options(password="secret"), False),
        (Credentials(users={"u": "p"}), Options(user="u", password="p"), True),
        (Credentials(users={"u": "p"}), Options(user="u", password="q"), False),
        (Credentials(users={"u": "p"}), Options(user="v", password="p"), False),
        (Credentials(users={"u": "p"}), Options(), False),
        (Credentials("secret", {"u": "p"}), Options(user="u", password="p"), True),
        (Credentials("secret", {"u": "p"}), Options(auth_token="secret"), True),
        (Credentials(users={"u": "ü"}), Options(user="u", password="ü"), True),
    ],
)
def test_only_valid_credentials_are_accepted(
    credentials: Credentials, options: Options, allowed: bool
) -> None:
    assert credentials.allow(options) is allowed


def test_credentials_are_required_where_there_are_any() -> None:
    assert not Credentials().required
    assert Credentials("secret").required
    assert Credentials(users={"u": "p"}).required


def test_a_later_connect_adds_to_earlier_options() -> None:
    before = connect_options(b'{"verbose":false,"name":"n"}')
    assert connect_options(b'{"echo":false}', before) == Options(
        verbose=False, name="n", echo=False
    )
