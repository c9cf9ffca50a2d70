"""From units to money: what an event costs by the price book, unit by unit.

Decimals only. Knows neither the bus nor ClickHouse. Usage without a price stays out of the result, so that it shows as
unpriced; it is never zero. Which entry applies is `contracts.prices`' rule, here only made fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from typing import Protocol

from contracts.prices import PRICES_ARE_PER, Price, PriceBook, cost

COST_SCALE = Decimal("1e-18")
"""finest step of a stored cost; ClickHouse keeps Decimal(38, 18)"""
_STORED = Context(prec=38)
_LARGEST_PRICE = Decimal(1_000_000)

_BILLED_BY = {
    "tts": ("characters", "audio_out_ms", "requests"),
    "stt": ("audio_in_ms", "requests"),
    "voice_changer": ("audio_in_ms", "requests"),
}
"""operation to the units that its price may be for: where one of them has a price, the others are measured, not billed.
Of other operations (voices, datasets, the account) nothing is metered: their requests cost nothing unless an entry says so"""


def _operation(to: "Billed") -> str:
    """Return what decides how an event is billed: the voice changer is speech, and is billed by what it listens to."""
    return "voice_changer" if to.endpoint.startswith("voice_changer.") else to.operation


class Billed(Protocol):
    """What of an event's attribution decides its price."""

    @property
    def workspace(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def endpoint(self) -> str: ...


@dataclass(frozen=True)
class PricedUnits:
    """Unit to cost and to currency, for the units that are priced; `revision` is of the book that was asked."""

    costs: dict[str, Decimal]
    currencies: dict[str, str]
    revision: int


class PriceIndex:
    """A price book, ready for many questions. `refused`: how many of its entries are not usable as prices."""

    def __init__(self, book: PriceBook) -> None:
        self.revision = book.revision
        usable = [entry for entry in book.prices if _is_usable(entry)]
        self.refused = len(book.prices) - len(usable)
        groups: dict[tuple[str, str, str], list[Price]] = {}
        for entry in usable:
            groups.setdefault((entry.workspace, entry.provider, entry.unit), []).append(entry)
        self._currencies: dict[tuple[str, str], str] = {}
        for entry in usable:
            self._currencies.setdefault((entry.workspace, entry.provider), entry.currency)
        self._groups = {group: PriceBook(revision=book.revision, prices=tuple(entries)) for group, entries in groups.items()}

    def priced(self, to: Billed, units: Mapping[str, int], at_ms: int) -> PricedUnits:
        """Return what the units cost. units: unit to quantity; at_ms: when they were measured, which decides the price.

        Speech that is priced by the character is not priced by the second as well: its seconds cost 0. Where no unit of
        an operation has a price, all of its units stay without a cost. Requests of an operation that is not metered cost 0,
        in the currency of the provider's first entry, as soon as the book prices anything of the provider. What could not be
        measured has no cost unless it is characters that are paid for, which always are.
        """
        costs: dict[str, Decimal] = {}
        currencies: dict[str, str] = {}
        for unit, quantity in units.items():
            price = self._price_of(to, unit, at_ms)
            if price is not None:
                costs[unit] = cost(price, quantity).quantize(COST_SCALE, context=_STORED)
                currencies[unit] = price.currency
            elif (other := self._price_of_another(to, unit, at_ms)) is not None:
                costs[unit] = Decimal(0)
                currencies[unit] = other.currency
            elif unit == "requests" and to.operation not in _BILLED_BY:
                free_in = self._currencies.get((to.workspace, to.provider))
                if free_in is not None:
                    costs[unit] = Decimal(0)
                    currencies[unit] = free_in
        return PricedUnits(costs, currencies, self.revision)

    def _price_of(self, to: Billed, unit: str, at_ms: int) -> Price | None:
        group = self._groups.get((to.workspace, to.provider, unit))
        return None if group is None else group.price_of(to.workspace, to.provider, to.account, to.model, unit, at_ms)

    def _price_of_another(self, to: Billed, unit: str, at_ms: int) -> Price | None:
        billed_by = _BILLED_BY.get(_operation(to), ("requests",))
        if unit == "unmeasured":
            billed_by = tuple(other for other in billed_by if other == "characters")
        for other in billed_by:
            if other != unit and (price := self._price_of(to, other, at_ms)) is not None:
                return price
        return None


def _is_usable(entry: Price) -> bool:
    """Tell whether an entry can price anything: a known unit, a currency, a finite decimal of sane size, not negative."""
    try:
        price = Decimal(entry.price)
    except InvalidOperation:
        return False
    return entry.unit in PRICES_ARE_PER and bool(entry.currency) and price.is_finite() and 0 <= price <= _LARGEST_PRICE
