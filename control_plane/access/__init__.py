"""Who may use what: collaborators of accounts (grants), and subjects in general. Read: schemas, queries, service, api."""
