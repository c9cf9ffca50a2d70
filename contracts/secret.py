"""A value that must not be printed.

`Secret` hides its content from repr, str, format, pickling and comparison by accident; the one door is `reveal()`, so
that a search for that word finds every place where a secret is in clear.
"""

import hmac
from typing import NoReturn


class Secret:
    """A credential or key in memory. `reveal()` gives the bytes."""

    __slots__ = ("__value",)

    def __init__(self, value: bytes | str) -> None:
        self.__value = value.encode() if isinstance(value, str) else bytes(value)

    def reveal(self) -> bytes:
        """Return the secret bytes, in clear."""
        return self.__value

    def __len__(self) -> int:
        return len(self.__value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self.__value, other.__value)

    def __hash__(self) -> int:
        return hash(("Secret", self.__value))

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Secret is not pickled")
