"""What a JSON body or message says of itself, and what is not judged but refused."""

import json

import pytest

from policy.facts import Facts, Unjudgeable
from policy.peek import characters_of, facts_of_json
from policy.providers import cartesia, kokoro

TTS = cartesia.TTS_WEBSOCKET
INVOCATIONS = kokoro.PROFILE.endpoints[0]


CONTAINER_SOCKET = kokoro.PROFILE.endpoints[1]


@pytest.mark.parametrize("kind", ["close", "cancel", "synthesize", None, ["close"], {"close": 1}, 1])
def test_a_containers_message_about_others_is_told_by_its_type(kind: object) -> None:
    found = facts_of_json(json.dumps({"type": kind}).encode(), CONTAINER_SOCKET)
    assert isinstance(found, Facts)
    assert (found.is_control, found.speaks) == (kind in ("close", "cancel"), False)


def facts(body: bytes | str) -> Facts:
    found = facts_of_json(body.encode() if isinstance(body, str) else body, TTS)
    assert isinstance(found, Facts), found
    return found


def reason(body: bytes | str) -> str | None:
    found = facts_of_json(body.encode() if isinstance(body, str) else body, TTS)
    return found.reason if isinstance(found, Unjudgeable) else None


def test_everything_judged_is_read() -> None:
    found = facts(
        '{"context_id":"c1","model_id":"sonic-3","transcript":"Hello, ","voice":"v1",'
        '"output_format":{"container":"raw"},"continue":true,"flush":true,"language":null}'
    )

    assert (found.model, found.voice, found.transcript, found.characters) == ("sonic-3", "v1", "Hello, ", 7)
    assert (found.context_id, found.continues, found.flushes, found.cancels, found.speaks) == ("c1", True, True, False, True)
    assert not found.saves_audio


def test_a_pretty_printed_cancel_is_read() -> None:
    found = facts('{\n  "cancel": true,\n  "context_id": "c1"\n}')

    assert (found.cancels, found.context_id, found.speaks, found.model) == (True, "c1", False, None)


@pytest.mark.parametrize(
    ("transcript", "speaks"),
    [
        ("", False),
        (" ", False),
        ("\n\t ", False),
        ("\u00a0\u2003", False),
        ("a", True),
        (" a ", True),
        ("\u200b", True),
        (".", True),
    ],
)
def test_a_message_speaks_if_its_transcript_is_not_blank(transcript: str, speaks: bool) -> None:
    assert facts(json.dumps({"transcript": transcript})).speaks is speaks


@pytest.mark.parametrize(
    ("voice", "expected"),
    [
        ('"v1"', ("v1", False)),
        ('{"id":"v1"}', ("v1", False)),
        ('{"mode":"id","id":"v1"}', ("v1", False)),
        ('{"mode":"id","id":"v1","__experimental_controls":{"speed":1}}', ("v1", False)),
        ('{"mode":"embedding","embedding":[0.1,0.2]}', (None, True)),
        ('{"id":"v1","embedding":[0.1]}', ("v1", True)),
        ('{"mode":"embedding","id":"v1"}', ("v1", True)),
        ('{"mode":"mix","id":"v1"}', ("v1", True)),
        ("null", (None, False)),
    ],
)
def test_a_voice_is_read_in_every_shape_of_the_api(voice: str, expected: tuple[str | None, bool]) -> None:
    found = facts(f'{{"voice":{voice}}}')

    assert (found.voice, found.is_voice_embedded) == expected


@pytest.mark.parametrize(
    ("save", "saves"), [("true", True), ("false", False), ("null", False), ('"false"', True), ("1", True), ("{}", True)]
)
def test_anything_but_no_counts_as_saving(save: str, saves: bool) -> None:
    assert facts(f'{{"save":{save}}}').saves_audio is saves


@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("", 0),
        ("Hello", 5),
        ("é😀", 2),
        ("e\u0301", 2),
        ('a <break time="1s"/> b', 5),
        ("<break/><break />", 2),
        ('<break time="1s">', 17),
        ("<breaking/>", 11),
        ("<spell>ab</spell>", 17),
        ("\ud83d", 1),
    ],
)
def test_characters_are_code_points_and_a_break_is_one(text: str, characters: int) -> None:
    assert characters_of(text) == characters


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"\u00e9\ud83d\ude00", "é😀"),
        (r"cut \ud83d", "cut \ud83d"),
        (r"\ude00 rest", "\ude00 rest"),
        (r"\ud83d and \ud83d\ude00", "\ud83d and 😀"),
        (r"\u0041", "A"),
        (r"\/", "/"),
    ],
)
def test_escapes_are_decoded_and_lone_surrogates_are_legal(escaped: str, text: str) -> None:
    assert facts(f'{{"model_id":"sonic-3","transcript":"{escaped}"}}').transcript == text


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("", "body_not_json"),
        ("[]", "body_not_json"),
        ("null", "body_not_json"),
        ('"sonic-3"', "body_not_json"),
        ("{", "body_not_json"),
        ('{"model_id":"sonic-3"} {}', "body_not_json"),
        ('{"model_id":"sonic-3",}', "body_not_json"),
        ('{"speed":NaN}', "body_not_json"),
        (r'{"speed":Infinity,"transcript":"\ud83d"}', "body_not_json"),
        (b'\xef\xbb\xbf{"model_id":"sonic-3"}', "body_not_json"),
        ('{"model_id":"sonic-3"}'.encode("utf-16"), "body_not_json"),
        (b'{"transcript":"\xff"}', "body_not_json"),
        (b'{"transcript":"\xed\xa0\xbd"}', "body_not_json"),
        (b'{"transcript":"\xff\\ud83d"}', "body_not_json"),
        (b'{"transcript":"a\nb"}', "body_not_json"),
        ('{"model_id":"sonic-3","model_id":"sonic-4"}', "judged_key_twice"),
        ('{"model_id":"sonic-3","model_id":"sonic-3"}', "judged_key_twice"),
        (r'{"model_id":"sonic-3","mod\u0065l_id":"sonic-4"}', "judged_key_twice"),
        (r'{"\u0073ave":false,"save":true}', "judged_key_twice"),
        ('{"transcript":"a","x":1,"transcript":"b"}', "judged_key_twice"),
        ('{"context_id":"a","context_id":"b"}', "judged_key_twice"),
        ('{"voice":{"id":"v1","id":"v2"}}', "judged_key_twice"),
        (r'{"voice":{"id":"v1","\u0069d":"v2"}}', "judged_key_twice"),
        ('{"model_id":"sonic-3","Model_ID":"sonic-4"}', "judged_key_spelling"),
        ('{"MODEL_ID":"sonic-4"}', "judged_key_spelling"),
        ('{"tranſcript":"long s"}', "judged_key_spelling"),
        ('{"voice":{"ID":"v2"}}', "judged_key_spelling"),
        ('{"model_id":7}', "judged_value_invalid"),
        ('{"model_id":["sonic-3"]}', "judged_value_invalid"),
        ('{"model_id":"' + "x" * 257 + '"}', "judged_value_invalid"),
        ('{"transcript":["a"]}', "judged_value_invalid"),
        ('{"transcript":{"text":"a"}}', "judged_value_invalid"),
        ('{"context_id":7}', "judged_value_invalid"),
        ('{"voice":7}', "judged_value_invalid"),
        ('{"voice":["v1"]}', "judged_value_invalid"),
        ('{"voice":{"id":7}}', "judged_value_invalid"),
        (r'{"voice":{"id":"v1"},"transcript":"\ud83d"}', None),
        ('{"language":"en","language":"de"}', None),
        ('{"note":{"model_id":"a","model_id":"b"},"model_id":"sonic-3"}', None),
        (r'{"transcript":"say \"model_id\": \"model_id\""}', None),
        ('{"model_id":null,"voice":null,"transcript":null,"context_id":null}', None),
        ('{"x":12345678901234567890.10e400}', None),
    ],
)
def test_what_two_parsers_may_read_differently_is_not_judged(body: bytes | str, expected: str | None) -> None:
    assert reason(body) == expected


@pytest.mark.parametrize("name", ["pcm_s16le", "pcm_s\\u00316le"])
def test_the_output_asked_for_is_read_alike_by_either_parser(name: str) -> None:
    body = f'{{"transcript":"Hi","output_format":{{"container":"raw","encoding":"{name}","sample_rate":8000}}}}'

    assert facts(body).output == {"container": "raw", "encoding": "pcm_s16le", "sample_rate": 8000}


def test_nesting_is_bounded() -> None:
    assert reason('{"x":' + "[" * 100_000 + "]" * 100_000 + "}") == "body_too_deep"
    assert reason('{"x":' + "[" * 100_000 + "]" * 100_000 + r',"y":"\ud83d"}') == "body_too_deep"


def test_the_sagemaker_routes_say_text() -> None:
    found = facts_of_json(b'{"text":"Hello","voice":"af_heart","model_id":"ignored"}', INVOCATIONS)

    assert isinstance(found, Facts)
    assert (found.model, found.voice, found.transcript, found.speaks) == (None, "af_heart", "Hello", True)


def test_a_transcript_is_not_printed() -> None:
    assert "private words" not in repr(facts('{"transcript":"private words"}'))
