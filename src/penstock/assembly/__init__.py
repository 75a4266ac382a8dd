"""The wiring diagrams: build a broker from a configuration, and run it."""
