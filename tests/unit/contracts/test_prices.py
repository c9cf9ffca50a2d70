"""Which price holds, and what a quantity costs."""

from decimal import Decimal

import pytest

from contracts.prices import Price, PriceBook, cost


def price(value: str, *, account: str = "", model: str = "*", effective_ms: int = 0, unit: str = "characters") -> Price:
    return Price(
        workspace="acme", provider="cartesia", account=account, model=model, unit=unit, price=value, effective_ms=effective_ms
    )


BOOK = PriceBook(
    revision=1,
    prices=(
        price("1"),
        price("2", model="sonic-3"),
        price("3", account="a-eu"),
        price("4", account="a-eu", model="sonic-3"),
        price("5", model="sonic-3", effective_ms=1000),
    ),
)


@pytest.mark.parametrize(
    ("account", "model", "at_ms", "expected"),
    [
        ("a-us", "ink-whisper", 0, "1"),
        ("a-us", "sonic-3", 999, "2"),
        ("a-us", "sonic-3", 1000, "5"),
        ("a-eu", "ink-whisper", 0, "3"),
        ("a-eu", "sonic-3", 2000, "4"),
    ],
)
def test_the_most_particular_price_in_force_wins(account: str, model: str, at_ms: int, expected: str) -> None:
    found = BOOK.price_of("acme", "cartesia", account, model, "characters", at_ms)
    assert found is not None
    assert found.price == expected


def test_a_unit_without_an_entry_is_unpriced() -> None:
    assert BOOK.price_of("acme", "cartesia", "a-eu", "sonic-3", "audio_in_ms", 0) is None


def test_another_workspace_sees_no_price() -> None:
    assert BOOK.price_of("umbrella", "cartesia", "a-eu", "sonic-3", "characters", 0) is None


def test_audio_is_priced_per_second_and_text_per_character_exactly() -> None:
    assert cost(price("0.1", unit="audio_in_ms"), 1234) == Decimal("0.1234")
    assert cost(price("0.00003"), 42) == Decimal("0.00126")
