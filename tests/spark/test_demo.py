"""The tour that newcomers take shows every door, the bucket and Spark, and leaves nothing."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tour_goes_through_every_door(tmp_path: Path) -> None:
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
        "nothing is left",
    ):
        assert told in done.stdout
    assert list(tmp_path.glob("penstock-demo-*")) == []
