"""The issuers' public keys, and the memory of what they signed.

The cache holds one fact a token: this key of this issuer signed these claims. It is keyed by the token's SHA-256, bounded,
and a fact dies with its key or with any change of the issuer's settings. Expiry, revocation, principal and grants are
judged anew each time, elsewhere. Fetching keys is not known here. Read next: `policy.authenticate`.
"""

import json
from dataclasses import dataclass
from typing import Any

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import Algorithm, get_default_algorithms
from jwt.exceptions import InvalidKeyError

from contracts.snapshot import Issuer
from policy.route import Caller

# Asymmetric only (RFC 8725 §3.1, §3.2): an HMAC key would have to be known here, and RS/HS confusion starts there.
_FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    "RS256": ("RSA", ()),
    "RS384": ("RSA", ()),
    "RS512": ("RSA", ()),
    "PS256": ("RSA", ()),
    "PS384": ("RSA", ()),
    "PS512": ("RSA", ()),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
"""algorithm -> key type and the curves that it may stand with"""

ALGORITHMS: frozenset[str] = frozenset(_FAMILIES)
_VERIFIERS: dict[str, Algorithm] = {name: found for name, found in get_default_algorithms().items() if name in ALGORITHMS}

_PUBLIC_MEMBERS = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y"), "OKP": ("kty", "crv", "x")}
_KEYS_A_SET = 256
_RSA_BITS = 2048
_CANDIDATES = 8
"""keys tried for a token that names none: each costs a signature check"""

CACHE_LIMIT = 8192


class KeySetRefused(ValueError):
    """The bytes are not a JWK set that this gateway can use; the text names no key material."""


class Key:
    """One public key of an issuer."""

    __slots__ = ("_key", "algorithms", "is_current", "kid", "members")

    def __init__(self, kid: str | None, members: dict[str, str], algorithm: str | None) -> None:
        self.kid = kid
        self.members = (kid, algorithm, tuple(sorted(members.items())))
        """what makes it the same key in the next fetch"""
        curve = members.get("crv")
        self.algorithms = frozenset(
            name
            for name, (family, curves) in _FAMILIES.items()
            if family == members["kty"] and (not curves or curve in curves) and algorithm in (None, name)
        )
        if not self.algorithms:
            raise InvalidKeyError("no algorithm of ours takes this key")
        # The JWK reader of one family serves all its algorithms; the curve was matched above.
        self._key: Any = _VERIFIERS[min(self.algorithms)].from_jwk(members)  # PyJWT types keys by family
        if members["kty"] == "RSA" and self._key.key_size < _RSA_BITS:
            raise InvalidKeyError("an RSA key below 2048 bits")
        self.is_current = True

    def public_bytes(self) -> bytes:
        """Return the key's SubjectPublicKeyInfo, DER."""
        encoded: bytes = self._key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return encoded

    def has_signed(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Tell whether the signature over `signed` (`header.payload` as received) is this key's."""
        return algorithm in self.algorithms and _VERIFIERS[algorithm].verify(signed, self._key, signature)


@dataclass(slots=True)
class Verified:
    """That a key of an issuer signed these claims, and what follows from both alone."""

    key: Key
    issuer: Issuer
    caller: Caller
    """as of its principal's record when it was last asked for"""
    since: float
    until: float
    """Unix seconds between which the token is valid, the issuer's leeway taken in"""


class KeyRing:
    """Public keys by issuer, and the verified-token cache."""

    __slots__ = ("_cache", "_sets", "_sources")

    def __init__(self) -> None:
        self._sets: dict[str, tuple[Key, ...]] = {}
        self._sources: dict[str, bytes] = {}
        self._cache: dict[bytes, Verified] = {}

    def set_keys(self, issuer_id: str, jwks: bytes) -> int:
        """Replace an issuer's keys by those of a JWKS document; returns how many of them can be used.

        Keys that stay keep their cached tokens; tokens of keys that went are verified anew, and refused. Keys for
        encryption, symmetric keys and keys of unknown kinds are passed over (RFC 7517 §5). Raises KeySetRefused if the
        bytes are no JWK set, and leaves the keys as they were.
        """
        kept = {key.members: key for key in self._sets.get(issuer_id, ())}
        keys = tuple(kept.pop(key.members, key) for key in _keys_of(jwks))
        for gone in kept.values():
            gone.is_current = False
        self._sets[issuer_id] = keys
        self._sources[issuer_id] = jwks
        return len(keys)

    def forget(self, issuer_id: str) -> None:
        """Drop an issuer's keys and every token that they verified."""
        for key in self._sets.pop(issuer_id, ()):
            key.is_current = False
        self._sources.pop(issuer_id, None)

    def has_keys(self, issuer_id: str) -> bool:
        """Tell whether the issuer's keys were ever set."""
        return issuer_id in self._sets

    def all_of(self, issuer: Issuer) -> tuple[Key, ...]:
        """Return every key of an issuer; a static set is read here, when it is first asked for or was changed."""
        static = issuer.jwks
        if issuer.jwks_uri is None and static is not None and self._sources.get(issuer.id) is not static:
            if self._sources.get(issuer.id) != static:
                try:
                    self.set_keys(issuer.id, static)
                except KeySetRefused:
                    self.forget(issuer.id)
            self._sources[issuer.id] = static
        return self._sets.get(issuer.id, ())

    def candidates(self, issuer: Issuer, kid: str | None) -> tuple[Key, ...]:
        """Return the keys that may have signed a token with this `kid` (None: it names none).

        A key without `kid` may be meant by any token; a token without `kid` may mean any key.
        """
        keys = self.all_of(issuer)
        if kid is None:
            return keys[:_CANDIDATES]
        return (
            tuple(key for key in keys if key.kid == kid)[:_CANDIDATES]
            or tuple(key for key in keys if key.kid is None)[:_CANDIDATES]
        )

    def verified(self, digest: bytes) -> Verified | None:
        """Return what is known of a token, by its SHA-256; None if nothing is, or its key is gone."""
        known = self._cache.get(digest)
        if known is not None and not known.key.is_current:
            del self._cache[digest]
            return None
        return known

    def remember(self, digest: bytes, verified: Verified) -> None:
        """Keep a verified token; the oldest one makes room."""
        cache = self._cache
        while len(cache) >= CACHE_LIMIT:
            del cache[next(iter(cache))]
        cache[digest] = verified

    def drop(self, digest: bytes) -> None:
        """Forget a token."""
        self._cache.pop(digest, None)

    def __len__(self) -> int:
        return len(self._cache)


def _keys_of(jwks: bytes) -> list[Key]:
    try:
        document = orjson.loads(jwks)
    except orjson.JSONDecodeError as error:
        raise KeySetRefused("the key set is not JSON") from error
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise KeySetRefused("the key set has no list of keys")
    if len(listed) > _KEYS_A_SET:
        raise KeySetRefused(f"the key set lists more than {_KEYS_A_SET} keys")
    keys = []
    for jwk in listed:
        key = _key_of(jwk)
        if key is not None:
            keys.append(key)
    return keys


def _key_of(jwk: Any) -> Key | None:  # JSON of any shape
    """Return the key that a JWK holds, or None if it is none for verifying signatures of ours."""
    if not isinstance(jwk, dict) or jwk.get("use") not in (None, "sig"):
        return None
    usages = jwk.get("key_ops")
    if usages is not None and not (isinstance(usages, list) and "verify" in usages):
        return None
    names = _PUBLIC_MEMBERS.get(jwk["kty"]) if isinstance(jwk.get("kty"), str) else None
    if names is None or not all(isinstance(jwk.get(name), str) for name in names):
        return None
    kid, algorithm = jwk.get("kid"), jwk.get("alg")
    if not isinstance(kid, str | None) or not isinstance(algorithm, str | None):
        return None
    try:
        # Only the public members are read: a set that publishes private ones does not put them into our memory.
        return Key(kid, {name: jwk[name] for name in names}, algorithm)
    except (InvalidKeyError, ValueError, KeyError, TypeError, OverflowError, UnsupportedAlgorithm):
        return None


def strict_object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object that the bytes hold; None if they hold none, or name a member twice at any level.

    For token headers and claims, where two readers must not see two things (RFC 8725 §2.4).
    """
    try:
        read = json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return read if isinstance(read, dict) else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member twice")
    return members


def _refuse(_: str) -> Any:
    raise ValueError("not JSON")
