"""Topics by name: their life, their partitions, and push and fetch for every protocol."""
