"""A program that used a store ends with its own exit code, not aborted by opendal's threads."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server

RUNS = 30
PROGRAM = """
import asyncio, sys
from pathlib import Path
from penstock.config.storage_settings import CloudSection, S3Section
from penstock.objects import (open_store)

async def main(port, root, access_key, secret_key, region, how):
    s3 = S3Section(region=region, endpoint=f"http://127.0.0.1:{port}", access_key=access_key,
            secret_key=secret_key)
    store = open_store(CloudSection(backend="s3", root=root, s3=s3), Path("."))
    await asyncio.gather(*(store.put(f"{n}", [b"abc" * 1000]) for n in range(5)))
    await asyncio.gather(*(store.get(f"{n}") for n in range(5)))
    if how == "in flight":
        asyncio.create_task(store.get("1"))
        await asyncio.sleep(0)
    if how == "closed":
        await store.close()

asyncio.run(main(*sys.argv[1:]))
sys.exit(7)
"""


@pytest.mark.parametrize("how", ["closed", "left open", "in flight"])
def test_a_program_that_used_a_store_exits_with_its_own_code(seaweedfs: S3Server, how: str) -> None:
    def run(number: int) -> tuple[int, str]:
        root = f"s3://{seaweedfs.bucket}/exit-{how[:2]}-{number}"
        arguments = [str(seaweedfs.port), root, ACCESS_KEY, SECRET_KEY, REGION, how]
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stderr

    with ThreadPoolExecutor(3) as pool:
        outcomes = list(pool.map(run, range(RUNS // 3)))
    assert [code for code, _ in outcomes] == [7] * len(outcomes), outcomes
