"""Listings: subjects with how many live messages they have and which is the last."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc
from pyroaring import BitMap64

from penstock.formats import postings
from penstock.formats.postings import Entries, Int64s
from penstock.log.subjects.bits import bits_of, live_last
from penstock.model.units import Offset

Row = tuple[bytes, int, Offset]
"""A subject, the number of its live messages, its last live offset."""


def summarise(
    pages: list[Entries], limit: int, start: int, deleted: BitMap64 | None
) -> tuple[list[Row], bytes | None]:
    """Rows of the first `limit` subjects of all pages, without those that have nothing live.

    Also the last subject that was looked at, to go on behind it; None when there is none.
    """
    entries = _from(postings.arrange(postings.concatenate(pages)), start)
    if not len(entries):
        return [], None
    changes = pc.not_equal(entries.subjects[1:], entries.subjects[:-1])
    starts = np.flatnonzero(np.append(True, changes.to_numpy(zero_copy_only=False)))
    if len(starts) > limit:
        entries, starts = entries.slice(0, int(starts[limit])), starts[:limit]
    counts, lasts = _live(entries, deleted)
    names = entries.subjects.take(starts).to_pylist()
    totals = np.add.reduceat(counts, starts).tolist()
    greatest = np.maximum.reduceat(lasts, starts).tolist()
    rows = zip(names, totals, greatest, strict=True)
    return [(name, total, Offset(last)) for name, total, last in rows if total], names[-1]


def _from(entries: Entries, start: int) -> Entries:
    """The entries with what lies before `start` cut off; some may be empty then."""
    ends = entries.firsts + entries.lengths
    firsts = np.maximum(entries.firsts, start)
    return Entries(entries.subjects, firsts, np.maximum(ends - firsts, 0))


def _live(entries: Entries, deleted: BitMap64 | None) -> tuple[Int64s, Int64s]:
    """Live messages of each entry, and the last of them, -1 when there is none."""
    ends = entries.firsts + entries.lengths
    if deleted is None:
        return entries.lengths, ends - 1
    hit = np.frombuffer((bits_of(entries.firsts, entries.lengths) & deleted).to_array(), np.int64)
    counts = entries.lengths - (np.searchsorted(hit, ends) - np.searchsorted(hit, entries.firsts))
    lasts = np.where(counts > 0, ends - 1, -1)
    for index in np.flatnonzero(np.isin(lasts, hit)).tolist():
        there = BitMap64()
        there.add_range(int(entries.firsts[index]), int(ends[index]))
        lasts[index] = live_last(there, deleted, 0)
    return counts, lasts
