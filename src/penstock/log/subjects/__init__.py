"""The subject index of a log finds which offsets carry a subject without reading the log.

`index` is the public face. `memory` has the subjects of the active file, `span` those of sealed
files on disk. `spans` keeps the spans complete and few: `build` makes them in the child process,
`merge` merges them, `rebuild` reads what is missing from objects. `queries` asks both, `bitmaps`
has the sets of offsets.
"""
