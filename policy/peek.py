"""What a judged JSON body or message says about itself, read without touching a byte of it.

Two readers must not see two things: a judged key that stands there twice, in another case or under an escape is not judged
but refused. Lone surrogate escapes are legal JSON (JavaScript cuts emoji when a model streams): where the fast parser
refuses them, the standard one reads on. Forms are read by `policy.form`. Read next: `policy.decide`.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from policy.facts import Facts, Unjudgeable
from policy.providers.profile import Endpoint

NOT_JSON: Final = Unjudgeable("body_not_json")
TOO_DEEP: Final = Unjudgeable("body_too_deep")
KEY_TWICE: Final = Unjudgeable("judged_key_twice")
KEY_SPELLING: Final = Unjudgeable("judged_key_spelling")
VALUE_INVALID: Final = Unjudgeable("judged_value_invalid")

_NAME_LIMIT: Final = 256
"""characters of a model, voice or context id that is judged"""

_BREAK: Final = re.compile(r"<break(?:\s[^<>]*)?/>")
_ASCII_ESCAPE: Final = re.compile(rb"\\u00[2-7]")
"""an escape that can spell a letter of a judged key"""

_FLAGS: Final = ("continue", "cancel", "flush")


@dataclass(frozen=True, slots=True)
class _Plan:
    """The judged keys of one endpoint."""

    model: str | None
    text: str | None
    voice: str | None
    output: str | None
    controls: tuple[str, ...]
    keys: frozenset[str]
    folded: frozenset[str]
    literals: tuple[bytes, ...]
    """the keys as they stand in JSON"""


_PLANS: dict[str, _Plan] = {}
"""by endpoint id, which names one set of judged keys in every profile"""

_USUAL: Final = frozenset(
    (
        "model_id",
        "transcript",
        "voice",
        "output_format",
        "language",
        "locale",
        "generation_config",
        "normalization",
        "pronunciation_dict_id",
        "save",
        "speed",
        "context_id",
        "continue",
        "flush",
        "cancel",
        "add_timestamps",
        "add_phoneme_timestamps",
        "use_normalized_timestamps",
        "use_original_timestamps",
        "max_buffer_delay_ms",
        "duration",
        "stream",
        "text",
        "request_id",
        "request_timestamp",
        "sample_rate",
        "type",
        "format",
        "transport",
    )
)
"""keys that are spelled as the documents do; others are looked at twice"""

_VOICE_LITERALS: Final = (b'"id"', b'"mode"', b'"embedding"')
_VOICE_KEYS_SOUGHT: Final = tuple((literal, re.compile(literal + rb"[ \t\r\n]*:")) for literal in _VOICE_LITERALS)
_VOICE_KEYS: Final = frozenset(("id", "mode", "embedding"))


def _plan_of(endpoint: Endpoint) -> _Plan:
    """Return the endpoint's judged keys, arranged once."""
    plan = _PLANS.get(endpoint.id)
    if plan is None:
        named = [key for key in (endpoint.model_key, endpoint.text_key, endpoint.voice_key) if key is not None]
        keys = frozenset((*named, "save", "context_id", *_FLAGS))
        plan = _PLANS[endpoint.id] = _Plan(
            endpoint.model_key,
            endpoint.text_key,
            endpoint.voice_key,
            endpoint.output_key,
            endpoint.control_types,
            keys,
            frozenset(key.casefold() for key in keys),
            tuple(b'"%b"' % key.encode() for key in sorted(keys)),
        )
    return plan


class _Pairs:
    """An object's members as they came, doubled ones included."""

    __slots__ = ("members",)

    def __init__(self, members: list[tuple[str, Any]]) -> None:
        self.members = members


def facts_of_json(body: bytes | bytearray | memoryview, endpoint: Endpoint) -> Facts | Unjudgeable:
    """Return what a JSON body or message says of itself. body: undecoded, whole, may be empty."""
    body = bytes(body)
    plan = _plan_of(endpoint)
    count = body.count
    for literal in plan.literals:
        if count(literal) > 1:
            break
    else:
        if _ASCII_ESCAPE.search(body) is None:
            try:
                read = orjson.loads(body)
            except orjson.JSONDecodeError:
                pass  # what it refuses beside bad JSON, lone surrogates and numbers beyond a double, is legal
            else:
                if type(read) is not dict:
                    return NOT_JSON
                voice = read.get(plan.voice) if plan.voice is not None else None
                if type(voice) is not dict or _is_each_key_once(body):
                    found = _facts(read, plan)
                    return found if isinstance(found, Facts) else _placed(found, read.items())
    slow = _members(body, plan)
    if isinstance(slow, Unjudgeable):
        return slow
    found = _facts(slow, plan)
    return found if isinstance(found, Facts) else _placed(found, slow.items())


def _placed(found: Unjudgeable, members: Iterable[tuple[str, Any]]) -> Unjudgeable:
    """Add the context that the message names, if no reader can see another; Any: JSON."""
    named = [(key, value) for key, value in members if key.casefold() == "context_id"]
    if len(named) != 1:
        return found
    key, value = named[0]
    if key != "context_id" or type(value) is not str or len(value) > _NAME_LIMIT:
        return found
    return replace(found, context_id=value)


def _is_each_key_once(body: bytes) -> bool:
    """Tell whether no key of a voice can stand there twice; `"mode":"id","id":…`, a value and a key, is the usual case."""
    count = body.count
    for literal, key in _VOICE_KEYS_SOUGHT:  # noqa: SIM110  # a generator costs twice as much, on every request
        if count(literal) > 1 and len(key.findall(body)) > 1:
            return False
    return True


def _members(body: bytes, plan: _Plan) -> dict[str, Any] | Unjudgeable:
    """Return the top-level members, read by the standard parser, which tells doubled keys and takes lone surrogates."""
    try:
        read = json.loads(body.decode("utf-8"), object_pairs_hook=_Pairs, parse_constant=_no_constant)
    except RecursionError:
        return TOO_DEEP
    except ValueError:
        return NOT_JSON
    if not isinstance(read, _Pairs):
        return NOT_JSON
    members: dict[str, Any] = {}
    for key, value in read.members:
        if key in plan.keys and key in members:
            return _placed(replace(KEY_TWICE, key=key), read.members)
        members[key] = value
    voice = members.get(plan.voice) if plan.voice is not None else None
    if isinstance(voice, _Pairs):
        names = [key for key, _ in voice.members if key.casefold() in _VOICE_KEYS]
        for name in names:
            if names.count(name) > 1:
                return _placed(replace(KEY_TWICE, key=f"{plan.voice}.{name.casefold()}"), read.members)
    try:
        return {key: _plain(value) for key, value in members.items()}
    except RecursionError:
        return TOO_DEEP


def _plain(value: Any) -> Any:
    """Return a value as the fast parser gives it: of doubled members the last."""
    if isinstance(value, _Pairs):
        return {key: _plain(member) for key, member in value.members}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return value


def _no_constant(_: str) -> Any:
    raise ValueError("NaN and Infinity are not JSON")


def _facts(members: dict[str, Any], plan: _Plan) -> Facts | Unjudgeable:
    get = members.get
    for key in members:
        if key not in _USUAL and key not in plan.keys and key.casefold() in plan.folded:
            # Parsers that match keys without case (Go's) would take this for the judged key.
            return replace(KEY_SPELLING, key=next(one for one in plan.keys if one.casefold() == key.casefold()))
    model = get(plan.model) if plan.model is not None else None
    text = get(plan.text) if plan.text is not None else None
    context = get("context_id")
    if model is not None and not (type(model) is str and len(model) <= _NAME_LIMIT):
        return replace(VALUE_INVALID, key=plan.model or "")
    if text is None:
        text = ""
    elif type(text) is not str:
        return replace(VALUE_INVALID, key=plan.text or "")
    if context is not None and not (type(context) is str and len(context) <= _NAME_LIMIT):
        return replace(VALUE_INVALID, key="context_id")
    voice = get(plan.voice) if plan.voice is not None else None
    is_embedded = False
    if type(voice) is dict:
        for key in voice:
            if key not in _VOICE_KEYS and key.casefold() in _VOICE_KEYS:
                return replace(KEY_SPELLING, key=f"{plan.voice}.{key.casefold()}")
        # Whatever else is named, an embedding may be what is spoken with.
        is_embedded = voice.get("embedding") is not None or voice.get("mode") not in (None, "id")
        voice = voice.get("id")
    if voice is not None and not (type(voice) is str and len(voice) <= _NAME_LIMIT):
        return replace(VALUE_INVALID, key=f"{plan.voice}.id" if type(get(plan.voice or "")) is dict else plan.voice or "")
    return Facts(
        model or None,
        voice,
        is_embedded,
        characters_of(text),
        not (text == "" or text.isspace()),
        text,
        get("save") not in (None, False),
        context,
        get("continue") is True,
        get("cancel") is True,
        get("flush") is True,
        None,
        None,
        _output(members, plan),
        get("type") in plan.controls,
    )


_CONTAINERS = {"wav": "wav", "mp3": "mp3", "pcm": "raw"}
"""the formats of Kokoro's container, by the names of Cartesia's"""


def _output(members: dict[str, Any], plan: _Plan) -> object:
    """Return what the audio is to be, in the shape of Cartesia's `output_format`."""
    if plan.output == "output_format":
        return members.get(plan.output)
    if plan.output is None:
        return None
    # Kokoro's container names the parts at top level, and has these defaults (docs/kokoro.md).
    named = members.get(plan.output, "wav")
    container = "raw" if plan.output == "sample_rate" else _CONTAINERS.get(named) if type(named) is str else None
    return {
        "container": container,
        "encoding": "pcm_s16le",
        "sample_rate": members.get("sample_rate", 24_000),
        "bit_rate": 48_000,
    }


def characters_of(text: str) -> int:
    """Return how many characters a transcript counts: code points, and each `<break …/>` as one (Cartesia docs, pricing)."""
    if "<break" not in text:
        return len(text)
    breaks = _BREAK.findall(text)
    return len(text) - sum(map(len, breaks)) + len(breaks)
