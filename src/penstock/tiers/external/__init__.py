"""Objects that other engines write: linked, compacted and abandoned ones."""
