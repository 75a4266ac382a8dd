"""The demo shows every protocol, the bucket and Spark, and removes its data."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tour_shows_every_protocol(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        cwd=ROOT,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for told in (
        "| 2  | grace    | 40    |",
        'pulled sequence 3: {"id":3,"customer":"linus","total":8.25}',
        "penstock job claim mails worker",
        "'customer': 'ada'",
        "|   grace|      40.0|",
        "its data is removed",
    ):
        assert told in done.stdout
    assert list(tmp_path.glob("penstock-demo-*")) == []
