"""Topics by name: made, found, pushed to and fetched from, whatever door asks."""
