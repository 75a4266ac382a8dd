"""Configuration: one frozen `Config`, read once, and the layer that each value comes from.

`load` reads the layers. `SETTINGS` is the table of all settings by key, from which the
documentation and the command line are generated. `parse_address` parses addresses of listeners.
"""

from penstock.config.addresses import (
    LOCALHOST,
    Address,
    AddressInvalid,
    is_loopback,
    parse_address,
    parse_addresses,
    split_address,
    unmapped,
)
from penstock.config.layers import FlagSetting, Loaded, load
from penstock.config.rules import SECRET_SHOWN, Setting
from penstock.config.setting_keys import SETTINGS, all_settings, read_value, secrets
from penstock.config.settings import Config
from penstock.config.storage_settings import AzblobSection, CloudSection, GcsSection, S3Section

__all__ = [
    "LOCALHOST",
    "SECRET_SHOWN",
    "SETTINGS",
    "Address",
    "AddressInvalid",
    "AzblobSection",
    "CloudSection",
    "Config",
    "FlagSetting",
    "GcsSection",
    "Loaded",
    "S3Section",
    "Setting",
    "all_settings",
    "is_loopback",
    "load",
    "parse_address",
    "parse_addresses",
    "read_value",
    "secrets",
    "split_address",
    "unmapped",
]
