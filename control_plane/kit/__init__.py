"""What every slice builds on: transactions that know their workspace, problems, paging, what a request carries.

Knows no resource. Read in this order: `problems` (how we say no), `database` and `unit` (one change, one transaction, one
audit entry each), `rows` (the statements that all tables share), `http` (request id, caller, ETag, cursor).
"""
