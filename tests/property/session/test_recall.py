"""A message or body that is recalled says what it would say if it were read whole."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from policy.facts import Facts
from policy.peek import facts_of_json
from policy.providers import cartesia
from policy.recall import Heard, Recall

_texts = st.one_of(
    st.sampled_from(["", " ", "Hi.", "a<break time='1s'/>b", '"', "\\", "é\U0001f600", "\t", "transcript"]), st.text(max_size=20)
)
_in_order = st.fixed_dictionaries(
    {"transcript": _texts},
    optional={
        "context_id": st.one_of(st.sampled_from(["c1", "c2", ""]), st.text(max_size=8)),
        "model_id": st.sampled_from(["sonic-3", "sonic-9", "transcript"]),
        "voice": st.sampled_from(["v1", {"mode": "id", "id": "v1"}, {"context_id": "c9"}]),
        "continue": st.booleans(),
        "cancel": st.booleans(),
        "metadata": st.sampled_from([{"transcript": "inner"}, ["transcript"], "context_id"]),
    },
)
_messages = st.one_of(_in_order, _in_order.map(lambda message: dict(reversed(message.items()))))


@given(st.lists(st.tuples(_messages, st.booleans(), st.booleans()), max_size=6))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_messages_are_heard_as_if_each_were_the_first(sent: list[tuple[dict[str, object], bool, bool]]) -> None:
    recall = Recall(cartesia.TTS_WEBSOCKET)
    for message, is_ascii, is_compact in sent:
        payload = json.dumps(message, ensure_ascii=is_ascii, separators=(",", ":") if is_compact else None)
        heard = recall.hear(payload.encode("utf-8", "surrogatepass"))
        whole = facts_of_json(payload.encode("utf-8", "surrogatepass"), cartesia.TTS_WEBSOCKET)
        if not isinstance(whole, Facts):
            assert heard == whole
            continue
        assert isinstance(heard, Heard)
        assert (heard.context_id, heard.transcript, heard.characters, heard.speaks) == (
            whole.context_id,
            whole.transcript,
            whole.characters,
            whole.speaks,
        )
        if whole.speaks:
            assert (heard.facts.model, heard.facts.voice, heard.facts.cancels) == (whole.model, whole.voice, whole.cancels)


_strings = st.one_of(st.sampled_from(["c1", "Hi.", "é", "\t", "a\\b", '"', "\u2028", "\x7f"]), st.text(max_size=4))


@given(
    st.booleans(),
    st.lists(st.tuples(_strings, _strings, st.booleans(), st.booleans()), min_size=1, max_size=6),
)
def test_messages_of_one_shape_are_heard_as_if_each_were_the_first(
    is_context_first: bool, sent: list[tuple[str, str, bool, bool]]
) -> None:
    recall = Recall(cartesia.TTS_WEBSOCKET)
    usual = ("c0", "Hello.", True, True)
    for context, text, is_ascii, is_escaped in [usual, *sent]:
        strings = [("context_id", context), ("transcript", text)]
        members = ",".join(
            # not escaped: as a faulty client writes it, with whatever stands in it
            f'"{key}":{json.dumps(value, ensure_ascii=is_ascii)}' if is_escaped else f'"{key}":"{value}"'
            for key, value in (strings if is_context_first else reversed(strings))
        )
        payload = b'{"model_id":"sonic-3",%b,"voice":"v1"}' % members.encode("utf-8", "surrogatepass")
        heard, whole = recall.hear(payload), facts_of_json(payload, cartesia.TTS_WEBSOCKET)
        if isinstance(whole, Facts):
            assert isinstance(heard, Heard)
            assert (heard.context_id, heard.transcript, heard.characters) == (
                whole.context_id,
                whole.transcript,
                whole.characters,
            )
        else:
            assert heard == whole


@given(st.lists(st.tuples(_messages, st.booleans(), st.booleans()), max_size=6))
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
def test_bodies_are_read_as_if_each_were_the_first(sent: list[tuple[dict[str, object], bool, bool]]) -> None:
    recall = Recall(cartesia.TTS_BYTES, 2)
    for message, is_ascii, is_compact in sent:
        body = json.dumps(message, ensure_ascii=is_ascii, separators=(",", ":") if is_compact else None)
        encoded = body.encode("utf-8", "surrogatepass")
        assert recall.facts(encoded) == facts_of_json(encoded, cartesia.TTS_BYTES)
