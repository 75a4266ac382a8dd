"""Ownership of topics: which broker may write a topic, by a lease and a fencing token.

`Ownership` acquires and releases topics for one broker. A `LeaseKeeper` renews its lease in a
thread, as `Tenure` decides.
"""

from penstock.metadata.ownership.ownership import (
    LEASE_ENDED,
    NOT_OURS,
    Epoch,
    NotOwner,
    Owner,
    Ownership,
    find_owner,
)
from penstock.metadata.ownership.tenure import LeaseTerms

__all__ = [
    "LEASE_ENDED",
    "NOT_OURS",
    "Epoch",
    "LeaseTerms",
    "NotOwner",
    "Owner",
    "Ownership",
    "find_owner",
]
