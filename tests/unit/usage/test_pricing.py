"""From units to money."""

from decimal import Decimal

import pytest

from contracts.prices import Price, PriceBook
from control_plane.aggregator.pricing import PriceIndex
from tests.kit.usage import attribution, price


def costs(units: dict[str, int], *prices: Price, at_ms: int = 1000, **to: str) -> dict[str, Decimal]:
    """What these units cost in workspace `acme` with Kokoro."""
    index = PriceIndex(PriceBook(revision=5, prices=prices))
    return index.priced(attribution(**to), units, at_ms).costs


def test_audio_is_priced_by_the_second_and_counted_in_milliseconds() -> None:
    assert costs({"audio_in_ms": 1500}, price("audio_in_ms", "0.003"), operation="stt") == {"audio_in_ms": Decimal("0.0045")}


def test_money_is_exact_where_floats_are_not() -> None:
    assert costs({"characters": 3}, price("characters", "0.1")) == {"characters": Decimal("0.3")}
    assert costs({"audio_in_ms": 1}, price("audio_in_ms", "0.000000000000001")) == {"audio_in_ms": Decimal("1e-18")}


def test_what_is_taken_back_costs_the_negative() -> None:
    assert costs({"characters": -7}, price("characters", "2")) == {"characters": Decimal(-14)}


@pytest.mark.parametrize(
    ("account", "model", "expected"),
    [("a", "m", "4"), ("a", "other", "3"), ("b", "m", "2"), ("b", "other", "1")],
)
def test_an_account_beats_its_provider_and_a_model_beats_all_models(account: str, model: str, expected: str) -> None:
    book = (
        price("characters", "1"),
        price("characters", "2", model="m"),
        price("characters", "3", account="a"),
        price("characters", "4", account="a", model="m"),
    )
    assert costs({"characters": 1}, *book, account=account, model=model) == {"characters": Decimal(expected)}


def test_what_no_price_is_for_is_absent_and_not_zero() -> None:
    assert costs({"audio_in_ms": 900, "requests": 1}, price("characters", "1"), operation="stt") == {}
    assert costs({"characters": 1}, price("audio_in_ms", "1"), operation="infill") == {}


def test_a_voice_changer_is_billed_by_what_it_listens_to_whatever_its_operation() -> None:
    units = {"audio_in_ms": 2000, "audio_out_ms": 1900, "requests": 1}
    to = {"endpoint": "voice_changer.bytes", "model": ""}
    assert costs(units, price("characters", "1"), **to) == {}
    assert costs(units, price("audio_in_ms", "3"), **to) == {
        "audio_in_ms": Decimal(6),
        "audio_out_ms": Decimal(0),
        "requests": Decimal(0),
    }


@pytest.mark.parametrize(
    ("entry", "to", "expected"),
    [
        (price("characters", "1"), {}, {"unmeasured": Decimal(0)}),
        (price("audio_out_ms", "1"), {}, {}),
        (price("audio_in_ms", "1"), {"operation": "stt"}, {}),
        (price("audio_in_ms", "1"), {"endpoint": "voice_changer.bytes"}, {}),
    ],
)
def test_what_could_not_be_measured_shows_as_unpriced_unless_characters_are_paid_for(
    entry: Price, to: dict[str, str], expected: dict[str, Decimal]
) -> None:
    assert costs({"unmeasured": 1}, entry, **to) == expected


def test_what_is_priced_by_another_unit_is_measured_and_costs_nothing() -> None:
    by_character = price("characters", "1", currency="EUR")
    assert costs({"requests": 1, "characters": 2, "audio_out_ms": 900}, by_character) == {
        "requests": Decimal(0),
        "characters": Decimal(2),
        "audio_out_ms": Decimal(0),
    }
    assert costs({"audio_out_ms": 900}, by_character) == {"audio_out_ms": Decimal(0)}
    index = PriceIndex(PriceBook(revision=5, prices=(by_character,)))
    assert index.priced(attribution(), {"audio_out_ms": 900}, 1000).currencies == {"audio_out_ms": "EUR"}


@pytest.mark.parametrize("operation", ["voices.read", "datasets", "account", "unlisted"])
def test_requests_of_an_operation_that_is_not_metered_cost_nothing_beside_other_prices(operation: str) -> None:
    index = PriceIndex(PriceBook(revision=5, prices=(price("characters", "1", currency="EUR"),)))
    priced = index.priced(attribution(operation=operation, model=""), {"requests": 1}, 1000)
    assert (priced.costs, priced.currencies) == ({"requests": Decimal(0)}, {"requests": "EUR"})


def test_requests_of_an_operation_that_is_not_metered_cost_what_an_entry_says() -> None:
    book = (price("characters", "1"), price("requests", "0.5"))
    assert costs({"requests": 2}, *book, operation="voices.read") == {"requests": Decimal("1.0")}


def test_without_any_price_of_the_provider_requests_stay_unpriced() -> None:
    elsewhere = price("characters", "1", workspace="other")
    assert costs({"requests": 1}, elsewhere, operation="voices.read") == {}


def test_a_price_of_another_workspace_prices_nothing() -> None:
    assert costs({"characters": 1}, price("characters", "1", workspace="other")) == {}


def test_a_price_before_its_day_prices_nothing() -> None:
    assert costs({"characters": 1}, price("characters", "1", effective_ms=1001), at_ms=1000) == {}


@pytest.mark.parametrize("amount", ["", "abc", "NaN", "Infinity", "-1", "1e30"])
def test_an_entry_that_is_no_price_is_left_out_and_counted(amount: str) -> None:
    index = PriceIndex(PriceBook(revision=1, prices=(price("characters", amount),)))
    assert index.refused == 1
    assert index.priced(attribution(), {"characters": 1}, 0).costs == {}


def test_an_entry_for_an_unknown_unit_or_without_a_currency_is_left_out() -> None:
    index = PriceIndex(PriceBook(revision=1, prices=(price("credits", "1"), price("characters", "1", currency=""))))
    assert index.refused == 2
