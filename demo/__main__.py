"""A tour of Penstock: one broker, one topic, every door, the bucket and Spark.

Everything happens in a temporary directory, on free ports, and is gone at the end.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from demo.broker import DemoBroker
from demo.tour import steps


def main() -> int:
    directory = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    try:
        with DemoBroker(directory) as broker:
            for number, (title, step) in enumerate(steps(), 1):
                print(f"\n{number}. {title}\n", flush=True)
                step(broker)
        print("\nThe broker drained and stopped; nothing is left.")
    finally:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
