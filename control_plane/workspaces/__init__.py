"""A workspace whole: its first owner, its settings, and the workspace file applied in one transaction.

Read in this order: `state` (what there is, in the file's terms), `plan` (pure: what would change), `execute` (do it through
the slices' services), `service` (bootstrap, apply, export, rewrap), `api`.
"""
