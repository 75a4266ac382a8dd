"""The documents of the JetStream API: what requests may say and what replies hold. Pure."""
