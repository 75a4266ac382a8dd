"""Benchmarks of this machine: `python -m bench [NAMES...] [--quick]`, one module a bench.

A bench is a module with `run(quick) -> Report`. It measures and prints; it never fails the build.
"""
