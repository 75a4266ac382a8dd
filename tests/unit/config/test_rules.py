import pytest

from penstock.config import Address, Setting
from penstock.config.rules import Addresses, Raw


def _setting(kind: type, **facts: object) -> Setting:
    given = {"default": "", "meaning": "", "low": 0, "high": 0, "choices": (), "secret": False}
    return Setting("a.b", kind, **{**given, **facts})  # type: ignore[arg-type]


NUMBER = _setting(int, low=-1, high=1000)
CHOICE = _setting(str, choices=("wait", "refuse"))
TEXT = _setting(str)
LIST = _setting(tuple[str, ...])
ADDRESS = _setting(Address)
ADDRESSES = _setting(Addresses)
SECRET = _setting(str, secret=True)


@pytest.mark.parametrize(
    ("setting", "raw", "value"),
    [
        (NUMBER, "-1", -1),
        (NUMBER, "1000", 1000),
        (NUMBER, "1_000", 1000),
        (CHOICE, "wait", "wait"),
        (TEXT, "", ""),
        (TEXT, "5", "5"),
        (TEXT, "a,b", "a,b"),
        (LIST, "", ()),
        (LIST, "a, b,", ("a", "b")),
        (LIST, ["a", "b,c"], ("a", "b,c")),
        (ADDRESS, "127.0.0.1:0", Address("127.0.0.1", 0)),
        (ADDRESS, "localhost:65535", Address("localhost", 65_535)),
        (ADDRESS, "[::1]:80", Address("::1", 80)),
        (ADDRESSES, "a:1,[::1]:80", (Address("a", 1), Address("::1", 80))),
        (ADDRESSES, ["a:1", "b:2, c:3"], (Address("a", 1), Address("b", 2), Address("c", 3))),
    ],
)
def test_text_within_the_rule_becomes_a_value(setting: Setting, raw: Raw, value: object) -> None:
    assert setting.parse(raw) == value


@pytest.mark.parametrize(
    ("setting", "raw"),
    [
        (NUMBER, "-2"),
        (NUMBER, "1001"),
        (NUMBER, "5.0"),
        (NUMBER, "five"),
        (NUMBER, ""),
        (NUMBER, " 5"),
        (NUMBER, "\u0665"),
        (NUMBER, ["5"]),
        (NUMBER, None),
        (CHOICE, "Wait"),
        (CHOICE, ""),
        (TEXT, ["a"]),
        (TEXT, None),
        (LIST, None),
        (ADDRESS, "8080"),
        (ADDRESS, ":8080"),
        (ADDRESS, "localhost"),
        (ADDRESS, "localhost:"),
        (ADDRESS, "localhost:65536"),
        (ADDRESS, "localhost:-1"),
        (ADDRESS, "::1:80"),
        (ADDRESS, "[]:80"),
        (ADDRESS, ["localhost:80"]),
        (ADDRESS, "a:1,b:2"),
        (ADDRESSES, ""),
        (ADDRESSES, []),
        (ADDRESSES, ["a:1", ""]),
        (ADDRESSES, "a:1,"),
        (ADDRESSES, None),
    ],
)
def test_text_that_breaks_the_rule_is_refused(setting: Setting, raw: Raw) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller builds the sentence
        setting.parse(raw)


@pytest.mark.parametrize(
    ("setting", "rule"),
    [
        (NUMBER, "a whole number from -1 to 1000"),
        (CHOICE, "one of wait, refuse"),
        (TEXT, "text"),
        (LIST, "a list of texts"),
        (ADDRESS, "HOST:PORT with a port from 0 to 65535"),
        (ADDRESSES, "HOST:PORT with a port from 0 to 65535, or a list of these"),
    ],
)
def test_the_rule_reads_as_the_end_of_a_sentence(setting: Setting, rule: str) -> None:
    assert setting.rule == rule


@pytest.mark.parametrize(
    ("setting", "value", "shown"),
    [
        (NUMBER, 5, "5"),
        (LIST, ("a", "b"), "a,b"),
        (ADDRESS, Address("127.0.0.1", 80), "127.0.0.1:80"),
        (ADDRESS, Address("::1", 80), "[::1]:80"),
        (ADDRESSES, (Address("a", 1), Address("::1", 80)), "a:1,[::1]:80"),
        (SECRET, "hunter2", "***"),
        (SECRET, "", ""),
    ],
)
def test_a_value_is_shown_as_it_is_written_unless_secret(
    setting: Setting, value: object, shown: str
) -> None:
    assert setting.show(value) == shown


def test_an_address_shown_is_an_address_again() -> None:
    for address in (Address("127.0.0.1", 80), Address("::1", 0)):
        assert ADDRESS.parse(str(address)) == address
