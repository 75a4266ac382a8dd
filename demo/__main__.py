"""A tour of Penstock: one broker, one topic, every protocol, the bucket and Spark.

It runs in a temporary directory on free ports, and leaves nothing behind.
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
        print("\nThe broker has stopped, and its data is removed.")
    finally:
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
