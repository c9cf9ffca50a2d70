"""The control plane: who may use which voice model, kept in Postgres and published to every gateway.

Read in this order: `tables` (what is kept), `people`, `accounts`, `catalog`, `access`, `tokens` (one slice each: schemas,
queries, service, api), `workspaces` (a workspace whole: first owner, apply, export), `publish` (rows to snapshot to NATS),
`vault` (secrets at rest and in transit), `app` (how it is put together), `main` (the process).
"""
