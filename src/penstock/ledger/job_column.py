"""Numbers by offset in arrays of one chunk each, so that a million numbers take megabytes."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

CHUNK_BITS: Final = 10
_MASK: Final = (1 << CHUNK_BITS) - 1


class Column:
    """Numbers by offset; 0 where none is set."""

    def __init__(self, dtype: str, chunks: dict[int, bytes] | None = None) -> None:
        self._dtype = np.dtype(dtype)
        self._chunks: dict[int, npt.NDArray[Any]] = {
            number: np.frombuffer(data, self._dtype).copy()
            for number, data in (chunks or {}).items()
        }

    def __getitem__(self, offset: int) -> int:
        chunk = self._chunks.get(offset >> CHUNK_BITS)
        return 0 if chunk is None else int(chunk[offset & _MASK])

    def __setitem__(self, offset: int, value: int) -> None:
        chunk = self._chunks.get(offset >> CHUNK_BITS)
        if chunk is None:
            if not value:
                return
            chunk = self._chunk(offset >> CHUNK_BITS)
        chunk[offset & _MASK] = value

    def set_many(self, offsets: npt.NDArray[np.int64], values: npt.NDArray[Any] | int) -> None:
        """Set ascending offsets to one number, or each to a number of its own."""
        numbers, starts = np.unique(offsets >> CHUNK_BITS, return_index=True)
        stops = [*starts[1:].tolist(), len(offsets)]
        for number, start, stop in zip(numbers.tolist(), starts.tolist(), stops, strict=True):
            value = values if isinstance(values, int) else values[start:stop]
            self._chunk(number)[offsets[start:stop] & _MASK] = value

    def chunks(self) -> set[int]:
        """Remove empty chunks; returns the numbers of the others."""
        self._chunks = {number: chunk for number, chunk in self._chunks.items() if chunk.any()}
        return set(self._chunks)

    def trim(self, below: int, needed: set[int]) -> None:
        """Remove the numbers of offsets before `below`, except in needed chunks."""
        for number in self.chunks() - needed:
            if number < below >> CHUNK_BITS:
                del self._chunks[number]

    def state(self) -> dict[int, bytes]:
        """The chunks as bytes, from which the constructor restores the column."""
        return {number: chunk.tobytes() for number, chunk in self._chunks.items() if chunk.any()}

    def _chunk(self, number: int) -> npt.NDArray[Any]:
        chunk = self._chunks.get(number)
        if chunk is None:
            chunk = self._chunks[number] = np.zeros(_MASK + 1, self._dtype)
        return chunk
