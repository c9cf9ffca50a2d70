"""What is remembered of messages so that the next ones are read at once."""

import tracemalloc

from policy.providers import cartesia
from policy.recall import Heard, Recall


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
