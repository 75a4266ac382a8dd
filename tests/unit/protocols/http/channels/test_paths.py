"""Addresses within the channel API."""

from penstock.protocols.http.channels import paths


def test_names_are_encoded() -> None:
    assert paths.producer("a b") == "/producer/a%20b"
    assert paths.consumer("c", "a/b") == "/channel/c/consumer/a%2Fb"
    assert paths.message("c", "m?#") == "/channel/c/message/m%3F%23"
    assert paths.scheduled("c", "ä") == "/channel/c/scheduled-message/%C3%A4"
    assert paths.job("c", "k", "j") == "/channel/c/consumer/k/job/j"
