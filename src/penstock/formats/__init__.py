"""Formats: bytes on disk, in the bucket and in requests, and names of files and keys. Pure.

Each module is one format: the WAL (`frames`, `bodies`, `batches`, `scan`, `frame_groups`,
`frame_table`), files beside it (`postings`, `expiry`, `message_ids`), objects, rows as JSON and
Arrow, and the messages of the HTTP and gRPC APIs.
"""
