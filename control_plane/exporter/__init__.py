"""Span events from the bus to OTLP receivers, a workspace's own each. Additive: what ClickHouse stores never depends on it.

A worker of its own: it imports nothing of the web side. Read next: `main` for the process, `lane` for one receiver.
"""
