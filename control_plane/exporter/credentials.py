"""Secret headers of a target, opened. One of the three modules that may open what is sealed (checked by import-linter)."""

from collections.abc import Sequence

from contracts import codec, sealing
from contracts.exports import ExportTarget, SecretHeaders
from contracts.secret import Secret


class HeadersUnreadable(ValueError):
    """A target's headers cannot be opened here; the text says which key they were sealed for."""


class HeaderSafe:
    """Opens sealed headers with the private keys that this process was given."""

    def __init__(self, private_keys: Sequence[Secret]) -> None:
        self._keys = {sealing.fleet_key_id(sealing.fleet_public_key(key)): key for key in private_keys}

    def headers_of(self, target: ExportTarget) -> dict[str, Secret]:
        """Return the secret headers, empty if it has none. Raises HeadersUnreadable."""
        box = target.sealed_headers
        if box is None:
            return {}
        purpose = sealing.export_headers_purpose(target.workspace, target.id, box.version, target.endpoint)
        try:
            opened = codec.decode(sealing.opened(box, self._keys, purpose).reveal(), SecretHeaders)
        except (sealing.CannotOpen, codec.Undecodable) as error:
            raise HeadersUnreadable(f"cannot open the headers of export target {target.name}: {error}") from error
        return {name: Secret(value) for name, value in opened.headers.items()}
