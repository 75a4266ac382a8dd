from __future__ import annotations

import gc
import os
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.host.child import Child
from penstock.host.shared_memory import SharedFile, mapped_view, shared_memory, writable_path


def open_memories() -> int:
    """The number of open descriptors of shared memory."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        # Another thread may close one meanwhile.
        with suppress(FileNotFoundError):
            links.append(os.readlink(path))
    return sum(link.startswith("/memfd:penstock") for link in links)


def fill(place: SharedFile, data: bytes) -> None:
    with writable_path(place) as path:
        Path(path).write_bytes(data)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_view_shows_what_another_process_wrote(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    child = Child()
    with shared_memory() as memory:
        assert bytes(mapped_view(memory)) == b""
        await child.call(fill, memory, b"abc" * 1000)
        assert bytes(mapped_view(memory)) == b"abc" * 1000
    await child.close()


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_view_outlives_the_memory_and_the_file_does_not(
    in_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
    with shared_memory() as memory:
        fill(memory, b"abc")
        seen = mapped_view(memory)
    gc.collect()
    assert bytes(seen) == b"abc"
    with pytest.raises(FileNotFoundError):
        mapped_view(memory)


def test_late_writers_do_not_open_another_file_with_the_same_descriptor(tmp_path: Path) -> None:
    """The path contains the number of a descriptor, which the system reuses."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"data")
    with shared_memory() as memory, precious.open("r+b") as file:
        late = memory._replace(path=f"/proc/{os.getpid()}/fd/{file.fileno()}")
        with pytest.raises(FileNotFoundError, match="the shared memory is gone"):
            fill(late, b"")
        with pytest.raises(FileNotFoundError, match="the shared memory is gone"):
            mapped_view(late)
    assert precious.read_bytes() == b"data"


def test_no_descriptor_is_left_open() -> None:
    before = open_memories()
    with shared_memory() as memory:
        fill(memory, b"abc")
        assert bytes(mapped_view(memory)) == b"abc"
        assert open_memories() == before + 1
    gc.collect()
    assert open_memories() == before
