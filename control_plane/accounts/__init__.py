"""Provider accounts: where a provider is reached and with which credential. Read: schemas, queries, service, api."""
