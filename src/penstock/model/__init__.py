"""The data model: names, units, subjects, schemas, batches, limits and errors. Pure.

It is a library of modules: `import penstock.model.names` loads no more than it needs.
"""
