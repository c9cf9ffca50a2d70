"""What a provider looks like from outside, as frozen data: mounts, endpoints, where facts stand, how errors are shaped.

No behaviour lives here and no provider is named here; `policy.providers.cartesia` and `.kokoro` hold the tables,
`policy.providers.registry` finds them by path.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from contracts.snapshot import ModelType
from policy.facts import FactsPlace

Operation: TypeAlias = Literal[
    "tts", "stt", "voices.read", "voices.write", "voices.clone", "datasets", "fine_tune", "agents", "account", "unlisted"
]
OPERATIONS: tuple[Operation, ...] = (
    "tts",
    "stt",
    "voices.read",
    "voices.write",
    "voices.clone",
    "datasets",
    "fine_tune",
    "agents",
    "account",
    "unlisted",
)
Metering: TypeAlias = Literal["characters", "stt_stream", "stt_batch", "voice_changer", "infill", "none"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One (method, path, transport) of a provider and how it is governed."""

    id: str
    """stable, for spans and rollups: `tts.bytes`, `tts.websocket`, `stt.websocket`, …; one id has one set of judged keys"""
    provider: str
    """the profile's name"""
    operation: Operation
    methods: tuple[str, ...]
    """empty: any"""
    path: str
    """the path after the mount; `{name}` stands for one segment, `{*}` at the end for one or more"""
    is_websocket: bool = False
    judged: FactsPlace | None = None
    """where model and text stand, if they do not stand in the query"""
    model_key: str | None = None
    """the JSON key, form field or query parameter that names the model; None: the endpoint has no model"""
    model_in_query: bool = False
    model_type: ModelType | None = None
    """what the model must be registered as; None: any"""
    model_header: bytes | None = None
    """a request header, in lower case, that may name the model instead"""
    takes_only_model: bool = False
    """where no model is named, the account's only model is meant"""
    text_key: str | None = None
    """the JSON key or form field that holds the text to speak"""
    voice_key: str | None = None
    """the JSON key or form field that names the voice"""
    control_types: tuple[str, ...] = ()
    """what `type` says in a socket's messages that are about the others and say nothing themselves"""
    output_key: str | None = None
    """the JSON key that says what the audio is to be, or the stem of the form fields that do; see `policy.peek`"""
    file_key: str | None = None
    """the form field that holds the audio whose length is billed"""
    metering: Metering = "none"
    base_characters: int = 0
    """what the provider bills for each call beside the characters of its text"""
    is_answered_here: bool = False
    """never forwarded: the gateway answers itself (`POST /access-token`)"""


@dataclass(frozen=True, slots=True)
class Profile:
    """A provider's wire protocol, and whose accounts speak it."""

    name: str
    mount: bytes
    """the first path segment"""
    providers: tuple[str, ...]
    """providers of accounts that can be reached under this mount; earlier ones come first where no model is named"""
    endpoints: tuple[Endpoint, ...]
    json_errors_since: str
    """the first version, a date, whose errors are JSON; older ones are `Title: Message` in plain text"""
    version_header: bytes
    version_query: bytes
    """the caller's version of the protocol; the query wins over the header (Cartesia docs, versioning)"""
