"""Topics of the default namespace as streams: subjects, limits, publish rules."""
