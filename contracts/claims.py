"""The claims of caller tokens that the control plane and gateways mint.

Such a token is a JWT in URL-safe characters (the oldest SDKs carry keys in a query, unescaped), signed ES256 or EdDSA with
a rotating key of the issuer whose `kind` is `glottis` (or `access_token` for `/access-token` answers). OIDC tokens have
their own claims, mapped by the issuer's record; only the registered names of RFC 7519 are shared.
"""

from typing import Final, Literal, TypeAlias

import msgspec

TYP = "glottis+jwt"
"""the JOSE header `typ` of a caller token of ours; a dashboard session never carries it"""

AUDIENCE = "glottis"

METADATA_CLAIM = "glottis_metadata"
"""an object of short strings, in a caller token of any issuer: what each of its exchanges is annotated with"""
METADATA_ENTRIES: Final = 32
METADATA_KEY_CHARACTERS: Final = 64
METADATA_VALUE_CHARACTERS: Final = 128

TokenKind: TypeAlias = Literal["personal", "service_account", "browser", "access"]


class CallerClaims(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The payload. Times are Unix seconds. A narrowing that is absent narrows nothing; an empty one admits nothing."""

    iss: str
    aud: str
    sub: str
    """the principal's id"""
    jti: str
    iat: int
    exp: int
    workspace: str
    kind: TokenKind
    team: str | None = None
    """the team that the cost goes to; must be one of the principal's"""
    accounts: tuple[str, ...] | None = None
    """account ids that the token may use; one alone is a pin"""
    models: tuple[str, ...] | None = None
    operations: tuple[str, ...] | None = None
    origins: tuple[str, ...] | None = None
    """browser tokens: values of `Origin` that may present it"""
    parent: str | None = None
    """`jti` of the token that this one was derived from: revoking either kills it"""
    is_single_use: bool = False
    """one open session at a time"""
    glottis_metadata: dict[str, str] | None = None
    """see METADATA_CLAIM"""
