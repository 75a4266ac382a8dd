"""Python clients of a broker; `penstock.Client` and `penstock.SyncClient` are the way in."""
