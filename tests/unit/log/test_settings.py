from penstock.formats.frames import BODY_BYTES_MAX
from penstock.log.settings import LogSettings, WhenFull


def test_the_defaults_fit_together() -> None:
    settings = LogSettings()
    assert settings.frame_bytes_max <= settings.pending_bytes_max
    assert settings.frame_bytes_max <= settings.file_bytes_max
    assert settings.frame_bytes_max < BODY_BYTES_MAX
    assert settings.sync_delay_seconds == 0.0
    assert 0 < settings.retry_seconds <= 1.0


def test_a_publish_waits_for_a_full_queue_by_default() -> None:
    assert LogSettings().when_full is WhenFull.WAIT
    assert [policy.value for policy in WhenFull] == ["wait", "refuse"]
