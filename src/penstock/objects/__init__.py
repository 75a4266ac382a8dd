"""Object stores behind one small interface: s3, gcs, azblob, fs, memory."""
