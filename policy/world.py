"""Everything that a decision is made with, besides the request and the time.

The gateway swaps a new one in with each snapshot; revocations and keys are the same objects throughout. The control plane
makes one to explain a decision. Read next: `policy.decide`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from policy.index import Index
from policy.keyring import KeyRing
from policy.providers.registry import NO_ROOT_MOUNTS
from policy.revoked import Revocations


@dataclass(frozen=True, slots=True)
class World:
    """One revision of the configuration, what was revoked since, and the issuers' keys."""

    index: Index
    revocations: Revocations = field(default_factory=Revocations)
    keys: KeyRing = field(default_factory=KeyRing)
    root_mounts: Mapping[bytes, str] = field(default_factory=lambda: NO_ROOT_MOUNTS)
    """host name, lower case -> profile that is mounted at its root, for clients that drop path prefixes"""
