"""The machine: clocks, disk, entropy, threads, tasks and the child process.

Only these modules make system calls, so that tests inject faults and simulate a machine here.
"""
