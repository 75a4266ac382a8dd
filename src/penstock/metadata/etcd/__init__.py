"""The metadata store that several brokers share: an etcd cluster.

`EtcdMetadata` implements `penstock.metadata.Metadata` for the cluster that `EtcdSettings` names.
"""

from penstock.metadata.etcd.calls import ResponseTooLarge, TokenRefused
from penstock.metadata.etcd.endpoints import EtcdSettings
from penstock.metadata.etcd.metadata import EtcdMetadata

__all__ = [
    "EtcdMetadata",
    "EtcdSettings",
    "ResponseTooLarge",
    "TokenRefused",
]
