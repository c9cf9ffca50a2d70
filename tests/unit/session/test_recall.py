"""What is remembered of messages so that the next ones are read at once."""

import tracemalloc

import pytest

from policy.facts import Unjudgeable
from policy.providers import cartesia
from policy.recall import Heard, Recall

LIKE = b'{"model_id":"sonic-3","context_id":"%b","transcript":"Bye.","voice":{"mode":"id","id":"v1"}}'


@pytest.mark.parametrize(("written", "meant"), [(rb"c\u0032", "c2"), (rb"\"c", '"c'), ("c\u20282".encode(), "c\u20282")])
def test_a_context_that_is_not_written_plainly_is_read_whole_though_all_else_is_like_before(written: bytes, meant: str) -> None:
    recall = Recall(cartesia.TTS_WEBSOCKET)
    recall.hear(LIKE % b"c1")

    heard = recall.hear(LIKE % written)

    assert isinstance(heard, Heard)
    assert heard.context_id == meant


def test_a_message_with_a_control_character_in_its_context_is_no_json_though_all_else_is_like_before() -> None:
    recall = Recall(cartesia.TTS_WEBSOCKET)
    recall.hear(LIKE % b"c1")

    heard = recall.hear(LIKE % b"\r\nc2")

    assert isinstance(heard, Unjudgeable)
    assert heard.reason == "body_not_json"


def test_what_is_remembered_of_messages_does_not_grow_with_their_texts() -> None:
    recall = Recall(cartesia.TTS_WEBSOCKET)
    tracemalloc.start()
    try:
        for kind in range(64):
            for text in (b"a" * 100_000, b"b" * 100_000):
                payload = b'{"model_id":"sonic-%d","context_id":"c1","transcript":"%b","voice":{"mode":"id","id":"v1"}}'
                heard = recall.hear(payload % (kind, text))
                assert isinstance(heard, Heard)
                assert heard.transcript == text.decode()
        del heard, payload
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 1_000_000
