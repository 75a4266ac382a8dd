"""The Spark program of the README prints what the README shows."""

import re
import subprocess
import sys

import penstock
from tests.integration.process import clean_environment
from tests.integration.test_readme import EXAMPLES, HTTP


def test_the_program_prints_the_table_that_the_readme_shows(
    client: penstock.SyncClient, url: str, name: str
) -> None:
    (example,) = (each for each in EXAMPLES if "penstock.spark" in each.text)
    client.create_topic(name, ["id:int64", "customer:string"])
    rows = re.findall(r"\| +\d+\| +(\d+)\| +(\w+)\|", example.output)
    client.push(name, [{"id": int(id_), "customer": customer} for id_, customer in rows])
    program = example.text.replace(HTTP, url).replace('"orders"', f'"{name}"')
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == example.output.strip()
