"""What a caller may do at the account that it resolved to: operation, voice, keeping audio, origin, open sessions.

One small question a function; each answers with a refusal or None. The order in which they are asked is `policy.decide`'s.
"""

from policy.access import Permit
from policy.facts import Facts
from policy.providers.profile import Endpoint
from policy.refusal import Refusal
from policy.route import Caller

SAVE_OPERATION = "voices.write"
"""keeping audio in the account changes it, like a voice does"""


def operation(caller: Caller, permit: Permit, endpoint: Endpoint) -> Refusal | None:
    """Refuse an operation that the grants, or the token, do not hold."""
    asked = endpoint.operation
    if endpoint.is_answered_here:
        # Minting is no operation at the provider: whatever the new token may do is cut to what its parent may.
        return Refusal("cannot_mint") if caller.issuer.kind == "access_token" else None
    if asked not in permit.operations or (caller.operations is not None and asked not in caller.operations):
        return Refusal("operation_not_granted", asked)
    return None


def facts(caller: Caller, permit: Permit, said: Facts) -> Refusal | None:
    """Refuse a voice that the account, or the teams, do not approve of, and `save` where it is not granted."""
    refused = voice(permit, said)
    if refused is None and said.saves_audio:
        permitted = caller.operations is None or SAVE_OPERATION in caller.operations
        if not permitted or SAVE_OPERATION not in permit.operations:
            return Refusal("save_not_granted")
    return refused


def voice(permit: Permit, said: Facts) -> Refusal | None:
    """Refuse a voice outside a list that binds; an embedding and the provider's default are outside any list."""
    for listed in (permit.account.allowed_voices, permit.voices):
        if listed is not None and (said.is_voice_embedded or said.voice not in listed):
            return Refusal("voice_not_allowed", "an embedding" if said.is_voice_embedded else said.voice or "none was named")
    return None


def origin(caller: Caller, shown: str | None) -> Refusal | None:
    """Refuse a browser token that is presented from a page that it was not minted for. shown: `Origin`, lower case."""
    if caller.origins is None or (shown is not None and shown in caller.origins):
        return None
    return Refusal("origin_not_allowed", shown or "no Origin was sent")
