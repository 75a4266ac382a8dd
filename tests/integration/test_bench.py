"""The bench that shows how soon messages are delivered does time every one of them."""

from pathlib import Path

import pytest

from bench import tiers


@pytest.mark.feature("T34")
async def test_every_run_is_delivered_and_timed_while_the_uploader_works(tmp_path: Path) -> None:
    delivered = await tiers.timed_deliveries(tmp_path, 0.5, uploads=True)
    assert len(delivered.deliveries) == int(0.5 * tiers.PACED_RATE / tiers.RUN_MESSAGES)
    assert min(delivered.deliveries) > 0
    promises = [target.promise for target in tiers.targets(1, 0, 0, tiers.late(delivered))]
    assert "tiers: append to delivery p99 under 1 s while uploading" in promises
