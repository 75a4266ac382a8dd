"""Every byte on disk and in the bucket: frames, codecs, names of keys and files. Pure."""
