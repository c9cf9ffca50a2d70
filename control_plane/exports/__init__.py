"""OTLP receivers of a workspace's spans, published to the exporter. Read: schemas, service, api."""
