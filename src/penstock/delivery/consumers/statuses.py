"""Statuses of the ledger as header blocks."""

from __future__ import annotations

from penstock.ledger.requests import Status
from penstock.wire import headers


def block(status: Status) -> bytes:
    """The header block that tells a status."""
    fields = ((name.encode(), b"%d" % value) for name, value in status.fields)
    return headers.status(status.code, status.text.encode(), *fields)
