"""Uploads: encode WAL frames into objects, and settle uploads that were interrupted."""
