"""Tags of Sonic's texts are silence, spelling, or nothing; they are never read out."""

from __future__ import annotations

import pytest

from kokoro_backend.markup import Pause, speech_parts


@pytest.mark.parametrize(
    ("sentence", "parts"),
    [
        ("Hello there.", ["Hello there."]),
        ('Wait<break time="1s"/>now.', ["Wait", Pause(1.0), "now."]),
        ("Wait <break time='250ms' /> now.", ["Wait ", Pause(0.25), " now."]),
        ('<break time="99s"/>', [Pause(10.0)]),
        ("<break/>Go.", ["Go."]),
        ("It is <spell>AB1</spell>.", ["It is  A B 1 ."]),
        ('<speed ratio="1.5"/>Fast <emotion value="angry">now</emotion>.', [" Fast  now ."]),
        ("Ha [laughter] ha", ["Ha   ha"]),
        ("3 < 5 and 7 > 2", ["3 < 5 and 7 > 2"]),
    ],
)
def test_tags_become_speech_parts(sentence: str, parts: list[str | Pause]) -> None:
    assert speech_parts(sentence) == parts
