"""The price book, as the control plane publishes it and the aggregator applies it.

A price holds from `effective_ms` until a later entry for the same (account or provider, model, unit). An entry for an
account beats one for its provider; a model's own entry beats `*`. Decimals travel as strings; money is never a float.
"""

from decimal import Decimal

import msgspec

PRICES_ARE_PER = {"characters": 1, "audio_in_ms": 1000, "audio_out_ms": 1000, "requests": 1}
"""unit -> how many of it the written price is for: prices of audio are per second"""


class Price(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One entry. `price`: a decimal, in `currency`, per character, per second of audio, or per request."""

    workspace: str
    provider: str
    account: str = ""
    """empty: every account of the provider"""
    model: str = "*"
    unit: str
    price: str
    currency: str = "USD"
    effective_ms: int = 0


class PriceBook(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All entries at one revision; a priced row records the revision that priced it."""

    SCHEMA = 1

    schema: int = 1
    revision: int
    prices: tuple[Price, ...] = ()

    def price_of(self, workspace: str, provider: str, account: str, model: str, unit: str, at_ms: int) -> Price | None:
        """Return the entry that prices this unit at this time; None means unpriced, which is shown, never zero."""
        best: tuple[tuple[bool, bool, int], Price] | None = None
        for entry in self.prices:
            if (
                entry.workspace != workspace
                or entry.provider != provider
                or entry.unit != unit
                or entry.account not in ("", account)
                or entry.model not in ("*", model)
                or entry.effective_ms > at_ms
            ):
                continue
            rank = (entry.account != "", entry.model != "*", entry.effective_ms)
            if best is None or rank > best[0]:
                best = (rank, entry)
        return None if best is None else best[1]


def cost(price: Price, quantity: int) -> Decimal:
    """Return what a quantity (in its unit: characters, milliseconds, requests) costs, exactly."""
    return Decimal(price.price) * quantity / PRICES_ARE_PER[price.unit]
