"""What the aggregator and the exporter have in common: a bus, an ops listener, a life from start to drain.

Imports nothing of the web side, so that a worker's image holds no web framework and no database driver. Knows no event.
Read next: `process`.
"""
