"""The words of the model: names, units, batches, limits, errors. Pure."""
