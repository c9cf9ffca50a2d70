"""A secret does not show itself by accident."""

import pickle

import pytest

from contracts.secret import Secret


def test_no_usual_way_of_printing_shows_the_content() -> None:
    secret = Secret("sk_live_123")
    assert [repr(secret), str(secret), f"{secret}", f"{secret!r:>5}", f"{[secret]}"] == [
        "Secret(…)",
        "Secret(…)",
        "Secret(…)",
        "Secret(…)",
        "[Secret(…)]",
    ]


def test_a_secret_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="a Secret is not pickled"):
        pickle.dumps(Secret("sk_live_123"))


def test_equal_contents_are_equal_and_reveal_is_the_one_door() -> None:
    assert Secret("a") == Secret(b"a")
    assert Secret("a") != Secret("b")
    assert Secret("a").reveal() == b"a"
