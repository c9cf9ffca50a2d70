"""Reading settings from environment variables, with errors that say what to do.

Called by each worker's `Settings.from_env`, which gets the environment as an argument: nothing here reads `os.environ`.
"""

import ssl
from collections.abc import Mapping
from pathlib import Path

from contracts.secret import Secret


class SettingsError(ValueError):
    """A variable is missing or wrong: one plain sentence that names it and says what to do. Holds no value of a secret."""


def secret_in_file(environ: Mapping[str, str], variable: str) -> Secret | None:
    """Return the content, stripped, of the file that the variable names; None if the variable is empty or not set."""
    path = environ.get(variable, "")
    if not path:
        return None
    try:
        return Secret(Path(path).read_bytes().strip())
    except OSError as error:
        raise SettingsError(f"{variable} names {path}, which cannot be read ({error.strerror}). Name a readable file.") from error


def listen_address(environ: Mapping[str, str], variable: str, default: str) -> tuple[str, int]:
    """Return (host, port); port 0 means any free one."""
    text = environ.get(variable, "") or default
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{variable} must be host:port, for example {default}.")
    return host.strip("[]"), int(port)


def positive_seconds(environ: Mapping[str, str], variable: str, default: float) -> float:
    """Return a duration in seconds, above 0."""
    text = environ.get(variable, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        seconds = 0
    if not 0 < seconds < 86_400:
        raise SettingsError(f"{variable} must be a number of seconds above 0 and below a day, for example {default:g}.")
    return seconds


def nats_tls(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return how to check the bus's certificate: by the authorities in GLOTTIS_NATS_CA_FILE; None: by the system's."""
    path = environ.get("GLOTTIS_NATS_CA_FILE", "")
    if not path:
        return None
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:  # ssl.SSLError is one
        raise SettingsError(
            f"GLOTTIS_NATS_CA_FILE names {path}, which is not a readable file of certificates. Name a PEM file of authorities."
        ) from error


def nats_url(environ: Mapping[str, str]) -> str:
    """Return GLOTTIS_NATS_URL, which every worker needs."""
    url = environ.get("GLOTTIS_NATS_URL", "")
    if not url.startswith(("nats://", "tls://")):
        raise SettingsError("GLOTTIS_NATS_URL must be set to the event bus, for example nats://127.0.0.1:4222.")
    return url
