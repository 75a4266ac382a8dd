"""Power cuts, on a real file system: `python -m tests.powercut --cuts 500`, or `make powercut`.

A broker's logs run in a child process on an ext4 file system of their own. While publishers,
deletions and purges keep it busy, the power of that file system is cut: all that was not synced is
gone, as on a machine without electricity. The file system is mounted again, the logs recover, and
the history of everything that was sent and acknowledged is held against everything that is there.

With `--tiers` the child runs the whole storage of a broker: metadata, ownership and a bucket on the
same file system, uploads, merges and pruning all the time. Then what the manifests and the bucket
held at the cut is compared with what readers get, too.

    __main__   options, and a namespace for everything to vanish with
    run        the cycles: recover, check, load, then a cut, a kill or an orderly stop
    plan       what the next cycle does, by chance
    image      the file system, and how its power is cut
    broker     the child process as its parent sees it; watch follows one from orders to end
    child      the other side: recovers, tells everything there is (view), keeps busy (load)
    storages   what the child runs: logs alone, or with tiers; bucket tells what those left
    orders     what a child is told to do
    aim        presses the switch when a part comes to a chosen step
    disks      disks that tell their steps, and disks that do not sync; bugs has those of the tiers
    facts      what travels from the child to its parent
    history    PURE: what must be there, and what is wrong with what is; partition for one of them

What is not simulated: a drive that forgets or reorders what it confirmed as flushed.
"""
