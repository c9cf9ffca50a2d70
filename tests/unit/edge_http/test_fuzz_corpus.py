"""Every input that ever failed a fuzz target of HTTP/1.1, and every seed, still passes."""

import pytest

from tests.fuzz.http1 import TARGETS, seeds_of


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_kept_inputs_and_seeds_pass(target: str) -> None:
    for data in seeds_of(target):
        TARGETS[target](data)
