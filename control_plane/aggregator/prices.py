"""The price book in use, kept up with what the control plane publishes."""

import asyncio

import structlog

from contracts import codec
from contracts.prices import PriceBook
from control_plane.aggregator.metrics import Metrics
from control_plane.aggregator.pricing import PriceIndex

_log = structlog.get_logger()


class Prices:
    """`current` is what to price with; `known` is set once the bus has said what there is, be it nothing."""

    def __init__(self, metrics: Metrics) -> None:
        self.current = PriceIndex(PriceBook(revision=0))
        self.known = asyncio.Event()
        self._metrics = metrics

    async def take(self, data: bytes | None) -> None:
        """Use the published book; None: nothing is published. An unreadable one leaves the last in use."""
        if data is not None:
            try:
                book = codec.decode(data, PriceBook)
            except codec.Undecodable as error:
                _log.error("price book refused, the last one stays", error=str(error), revision=self.current.revision)
                return
            self.current = PriceIndex(book)
            self._metrics.price_revision.set(book.revision)
            self._metrics.refused_prices.set(self.current.refused)
            _log.info("price book taken", revision=book.revision, prices=len(book.prices), refused=self.current.refused)
        self.known.set()
