from penstock.log.reopen import Mode
from penstock.log.status import LogStatus
from penstock.model.run import Run
from tests.unit.log.conftest import OpenLogs


async def test_the_status_of_a_log_is_a_moments_view_of_all_of_it(logs: OpenLogs) -> None:
    log = await logs.log()
    await log.append(Run(b"s", [b"x"]))
    size = logs.wal_files()[0].stat().st_size
    before = log.status()
    assert before == LogStatus("default/default/t", Mode.OPEN, "", 1, size, 0, ())
    future = log.append(Run(b"s", [b"y" * 99]))
    assert log.status().pending_bytes == 100
    await future
    assert before.pending_bytes == 0
