"""Reads messages and subjects back from objects, and checks objects."""
