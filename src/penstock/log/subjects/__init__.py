"""The subject index of a log: which offsets carry a subject, found without reading the log.

`index` is what others use. In memory: `live`, `map`, `pieces`. On disk: `file`, `store`, `build`,
`merge`. Between them: `plan`, `spans`, `rebuild`, `queries`, `listing`, `bits`.
"""
