"""What a provider looks like from outside, as frozen data: mounts, endpoints, where facts stand, how errors are shaped.

No behaviour lives here and no provider is named here; `policy.providers.cartesia` and `.kokoro` hold the tables,
`policy.providers.registry` finds them by path.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from policy.facts import FactsPlace

Operation: TypeAlias = Literal[
    "tts", "stt", "voices.read", "voices.write", "voices.clone", "datasets", "fine_tune", "agents", "account", "unlisted"
]
Metering: TypeAlias = Literal["characters", "stt_stream", "stt_batch", "voice_changer", "infill", "none"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One (method, path, transport) of a provider and how it is governed."""

    id: str
    """stable, for spans and rollups: `tts.bytes`, `tts.websocket`, `stt.websocket`, …"""
    provider: str
    operation: Operation
    methods: tuple[str, ...]
    """empty: any"""
    path: str
    """the path after the mount; `{name}` stands for one segment"""
    is_websocket: bool = False
    judged: FactsPlace | None = None
    """where model and text stand, if they do not stand in the query"""
    model_key: str | None = None
    """the JSON key, form field or query parameter that names the model; None: the endpoint has no model"""
    model_in_query: bool = False
    metering: Metering = "none"
    is_answered_here: bool = False
    """never forwarded: the gateway answers itself (`POST /access-token`)"""
