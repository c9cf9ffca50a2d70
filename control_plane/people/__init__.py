"""Who calls: issuers of their tokens, users, service accounts, teams. Read: schemas, queries, service, api."""
