"""Configuration: one frozen value, read once, and where each part of it came from."""

from penstock.config.layers import Flag, Loaded, load
from penstock.config.rules import Address
from penstock.config.settings import SETTINGS, Config, all_settings, read_value, secrets

__all__ = [
    "SETTINGS",
    "Address",
    "Config",
    "Flag",
    "Loaded",
    "all_settings",
    "load",
    "read_value",
    "secrets",
]
