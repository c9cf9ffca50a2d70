"""Key files: one key a line, 32 bytes as base64; the first is used, the others still open what they once closed.

Blank lines and lines that begin with `#` are skipped. Text in, keys out: who reads the file is `main`.
"""

import base64
import binascii

from contracts.secret import Secret


class KeyFileError(ValueError):
    """A key file that cannot be used; the text names the line, never its content."""


def read_keys(text: str) -> tuple[Secret, ...]:
    """Return the keys of a key file, the current one first. Raises KeyFileError."""
    keys = []
    for number, written in enumerate(text.splitlines(), start=1):
        line = written.strip()
        if not line or line.startswith("#"):
            continue
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError) as error:
            raise KeyFileError(f"line {number} is not base64") from error
        if len(key) != 32:
            raise KeyFileError(f"line {number} holds {len(key)} bytes; a key has 32")
        keys.append(Secret(key))
    if not keys:
        raise KeyFileError("it holds no key")
    return tuple(keys)
