"""Which optional packages are installed. An image brings one process's packages; the others' commands say what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from glottis.errors import SetupError

# Our own packages: a module missing in one of these is a defect of ours, not a missing extra.
_OURS: Final = frozenset({"contracts", "policy", "gateway", "control_plane", "kokoro_backend", "glottis", "migrations"})


@contextmanager
def missing_extra(extra: str, what: str) -> Iterator[None]:
    """Turn the import of a package that is not installed into a SetupError with the pip command that brings it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _OURS:
            raise
        raise SetupError(
            f"`{what}` needs the package {package}, which is not installed.",
            f"Install what it needs: pip install 'glottis[{extra}]'",
        ) from error
