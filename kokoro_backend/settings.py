"""What the operator decides about the Kokoro process, read once from the environment.

`main` reads it and passes it on; nothing else looks at the environment. The caller key is kept as a digest only.
"""

import hashlib
import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EngineName = Literal["onnx", "torch", "tone"]
PrecisionName = Literal["int8", "fp32", "int8+fp32", "fp32+int8"]
_PRECISIONS: tuple[PrecisionName, ...] = ("int8", "fp32", "int8+fp32", "fp32+int8")
_ENGINES: tuple[EngineName, ...] = ("onnx", "torch", "tone")


class SettingsError(Exception):
    """A setting cannot be used; the message names the variable and what to do."""


@dataclass(frozen=True)
class Settings:
    """Settings of one Kokoro process."""

    host: str
    port: int
    """0 takes a free port; the bound address is logged."""
    weights: Path | None
    """A directory of one's own weights; None means the packaged ones, assembled into `cache`."""
    cache: Path
    caller_key_digest: bytes | None
    """SHA-256 of the key that callers must show; None asks for none, and is allowed on loopback only."""
    threads: int
    """Threads of one inference; there is one inference at a time."""
    engine: EngineName
    precision: PrecisionName | None
    """Of the onnx engine, "front+back" where the halves differ; None lets a self-test at the first start choose the fastest."""
    lexicon: Path | None
    """A JSON file of one's own pronunciations: word -> phonemes in Kokoro's alphabet."""
    queue_limit: int
    """Units of speech that may wait before new messages are answered with 503 queue_saturated."""

    @staticmethod
    def from_env(environ: Mapping[str, str]) -> "Settings":
        """Return the settings in `environ`. Raises SettingsError with one plain sentence."""
        host, port = _listen(environ.get("GLOTTIS_KOKORO_LISTEN") or "127.0.0.1:8080")
        key_file = environ.get("GLOTTIS_KOKORO_KEY_FILE")
        digest = _key_digest(Path(key_file)) if key_file else None
        # SageMaker's callers are authenticated by IAM, and its proxy can show a container no key.
        behind = environ.get("GLOTTIS_KOKORO_BEHIND") or ""
        if behind not in ("", "sagemaker"):
            raise SettingsError(f"GLOTTIS_KOKORO_BEHIND is {behind!r}; write sagemaker, or leave it out.")
        if digest is None and not behind and not _is_loopback(host):
            raise SettingsError(
                f"GLOTTIS_KOKORO_LISTEN names {host}, which others can reach, but GLOTTIS_KOKORO_KEY_FILE is not set: "
                "put a caller key of at least 16 characters into a file and name it there."
            )
        weights = environ.get("GLOTTIS_KOKORO_WEIGHTS")
        lexicon = environ.get("GLOTTIS_KOKORO_LEXICON")
        return Settings(
            host=host,
            port=port,
            weights=Path(weights) if weights else None,
            cache=_cache(environ),
            caller_key_digest=digest,
            threads=_positive(environ, "GLOTTIS_KOKORO_THREADS", default=min(os.cpu_count() or 1, 8), most=256),
            engine=_engine(environ.get("GLOTTIS_KOKORO_ENGINE") or "onnx"),
            precision=_precision(environ.get("GLOTTIS_KOKORO_PRECISION") or "auto"),
            lexicon=Path(lexicon) if lexicon else None,
            queue_limit=_positive(environ, "GLOTTIS_KOKORO_QUEUE_LIMIT", default=256, most=100_000),
        )


def _listen(value: str) -> tuple[str, int]:
    host, _, port = value.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise SettingsError(f"GLOTTIS_KOKORO_LISTEN is {value!r}; write host:port, for example 127.0.0.1:8080.")
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key_digest(path: Path) -> bytes:
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"GLOTTIS_KOKORO_KEY_FILE names {path}, which cannot be read: {error.strerror}.") from error
    if len(key) < 16:
        raise SettingsError(f"GLOTTIS_KOKORO_KEY_FILE names {path}, whose key is shorter than 16 characters.")
    return hashlib.sha256(key).digest()


def _cache(environ: Mapping[str, str]) -> Path:
    if named := environ.get("GLOTTIS_KOKORO_CACHE_DIR"):
        return Path(named)
    base = environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "glottis" / "kokoro"
    home = environ.get("HOME")
    if not home:
        raise SettingsError("There is no HOME to keep Kokoro's files in: set GLOTTIS_KOKORO_CACHE_DIR.")
    return Path(home) / ".cache" / "glottis" / "kokoro"


def _positive(environ: Mapping[str, str], name: str, default: int, most: int) -> int:
    value = environ.get(name)
    if not value:
        return default
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= most:
        raise SettingsError(f"{name} is {value!r}; write a whole number from 1 to {most}.")
    return int(value)


def _precision(value: str) -> PrecisionName | None:
    if value == "auto":
        return None
    for name in _PRECISIONS:
        if value == name:
            return name
    raise SettingsError(f"GLOTTIS_KOKORO_PRECISION is {value!r}; write auto, {', '.join(_PRECISIONS[:-1])} or {_PRECISIONS[-1]}.")


def _engine(value: str) -> EngineName:
    for name in _ENGINES:
        if value == name:
            return name
    raise SettingsError(f"GLOTTIS_KOKORO_ENGINE is {value!r}; write one of {', '.join(_ENGINES)}.")
