from penstock.ledger.pins import Pin
from penstock.ledger.requests import PullRequest


def test_the_first_request_pins_its_client_and_others_wait() -> None:
    pin = Pin(10)
    first, second = PullRequest(b"a"), PullRequest(b"b")
    assert pin.choose([first, second], "p1", 0) == [first]
    assert (pin.id, first.pin, second.pin) == ("p1", "p1", "")


def test_a_request_with_another_pin_is_refused_and_one_without_waits() -> None:
    pin = Pin(10)
    pin.choose([PullRequest(b"a")], "p1", 0)
    assert pin.refuses(PullRequest(b"b", pin="p0"))
    assert not pin.refuses(PullRequest(b"b", pin="p1"))
    assert not pin.refuses(PullRequest(b"b"))
    assert pin.choose([PullRequest(b"b")], "p2", 0) == []


def test_a_pin_lasts_while_its_client_sends_requests() -> None:
    pin = Pin(10)
    pin.choose([PullRequest(b"a")], "p1", 0)
    pin.extend(PullRequest(b"a", pin="p1"), 5)
    pin.extend(PullRequest(b"b"), 9)
    assert not pin.expire(14)
    assert pin.expire(15)
    assert not pin.expire(16)
    assert pin.choose([PullRequest(b"b")], "p2", 16)[0].inbox == b"b"


def test_a_request_with_an_old_pin_pins_no_client() -> None:
    assert Pin(10).choose([PullRequest(b"a", pin="p0")], "p1", 0) == []
