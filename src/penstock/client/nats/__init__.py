"""A NATS client that pulls: what `penstock.nats` is made of."""
