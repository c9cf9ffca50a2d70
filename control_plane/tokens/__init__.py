"""Tokens of our own: minted as JWTs, kept as digests, revoked ahead of everything. Read: schemas, signing, service, api."""
