"""Configuration: one frozen value, read once, and where each part of it came from."""

from penstock.config.layers import Flag, Loaded, load
from penstock.config.rules import Address
from penstock.config.settings import SETTINGS, Config, read_value, secrets

__all__ = ["SETTINGS", "Address", "Config", "Flag", "Loaded", "load", "read_value", "secrets"]
