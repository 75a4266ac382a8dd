"""The machine: clock, disk, entropy, threads, child process. The only place with system calls, and
so the place where faults are injected and a simulation takes over.
"""
