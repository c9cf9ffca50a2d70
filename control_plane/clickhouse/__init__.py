"""ClickHouse: where it is, how to open it, which of its errors pass, and its schema.

Used by the aggregator (writes), the reports (reads) and `glottis migrate`. Knows nothing of what the tables mean.
Read next: `connection`, then `schema`.
"""
