"""From the WAL to the bucket and back: uploads, manifest, merge, retention, cold reads."""
