"""What there is to use and what it costs: models of accounts, and the price book. Read: schemas, queries, service, api."""
