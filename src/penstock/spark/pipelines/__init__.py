"""Jobs over topics: each a function of a session and names, with a thin command."""
