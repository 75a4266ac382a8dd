"""The rules that settings make."""

from penstock.delivery.channels.settings import ChannelSettings


def test_a_job_in_flight_ends_after_call_slack_and_delay() -> None:
    settings = ChannelSettings(timeout_seconds=30, rational_delay_seconds=2, retries_max=5)
    assert settings.rules == (5, 32_250_000)
