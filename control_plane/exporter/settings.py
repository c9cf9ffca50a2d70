"""What an operator may set of the exporter, read once from the environment."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import yaml

from contracts.exports import ExportTarget
from contracts.secret import Secret
from contracts.subjects import EXPORTER_INBOX
from control_plane.worker.bus import BusSettings
from control_plane.worker.environment import SettingsError, listen_address, nats_tls, nats_url, positive_seconds, secret_in_file


class _TargetInFile(ExportTarget, frozen=True, kw_only=True):
    """A target of the operator's own file; secret headers lie in files of their own."""

    workspace: str = "*"
    header_files: dict[str, str] = msgspec.field(default_factory=dict)
    ca_file: str = ""


@dataclass(frozen=True)
class Settings:
    """bus: where spans come from; listen: (host, port) of the ops listener; targets: the operator's own, with the secret
    headers of each by target id; fleet_keys: raw private keys that open sealed headers; allowed_origins: exceptions of the
    egress guard. attempts: how often a batch is tried before it is dropped."""

    bus: BusSettings
    listen: tuple[str, int]
    targets: tuple[ExportTarget, ...] = ()
    secret_headers: Mapping[str, Mapping[str, Secret]] | None = None
    fleet_keys: tuple[Secret, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    ack_wait_seconds: float = 60
    first_backoff_seconds: float = 1
    longest_backoff_seconds: float = 60
    attempts: int = 10
    drain_seconds: float = 10

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Return the settings. Raises SettingsError, one sentence that names the variable."""
        targets, headers = _targets_in_file(environ)
        return cls(
            bus=BusSettings(
                nats_url(environ), secret_in_file(environ, "GLOTTIS_NATS_SEED_FILE"), EXPORTER_INBOX, nats_tls(environ)
            ),
            listen=listen_address(environ, "GLOTTIS_EXPORTER_LISTEN", "127.0.0.1:9465"),
            targets=targets,
            secret_headers=headers,
            fleet_keys=_keys(environ),
            allowed_origins=tuple(
                text.strip() for text in environ.get("GLOTTIS_ALLOWED_PRIVATE_ORIGINS", "").split(",") if text.strip()
            ),
            ack_wait_seconds=positive_seconds(environ, "GLOTTIS_EXPORTER_ACK_WAIT_SECONDS", 60),
            first_backoff_seconds=positive_seconds(environ, "GLOTTIS_EXPORTER_FIRST_BACKOFF_SECONDS", 1),
            longest_backoff_seconds=positive_seconds(environ, "GLOTTIS_EXPORTER_LONGEST_BACKOFF_SECONDS", 60),
            drain_seconds=positive_seconds(environ, "GLOTTIS_EXPORTER_DRAIN_SECONDS", 10),
        )


def _keys(environ: Mapping[str, str]) -> tuple[Secret, ...]:
    text = secret_in_file(environ, "GLOTTIS_FLEET_KEY_FILE")
    if text is None:
        return ()
    try:
        return tuple(Secret(base64.b64decode(line, validate=True)) for line in text.reveal().split())
    except binascii.Error as error:
        raise SettingsError("GLOTTIS_FLEET_KEY_FILE must hold keys in base64, one a line.") from error


def _targets_in_file(environ: Mapping[str, str]) -> tuple[tuple[ExportTarget, ...], dict[str, dict[str, Secret]]]:
    variable = "GLOTTIS_EXPORTER_TARGETS_FILE"
    text = secret_in_file(environ, variable)
    if text is None:
        return (), {}
    try:
        entries = msgspec.convert(yaml.safe_load(text.reveal()), list[_TargetInFile])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise SettingsError(
            f"{variable} must hold a YAML list of targets with id, name and endpoint, see docs/usage.md."
        ) from error
    targets: list[ExportTarget] = []
    headers: dict[str, dict[str, Secret]] = {}
    for entry in entries:
        fields = {name: getattr(entry, name) for name in ExportTarget.__struct_fields__}
        try:
            headers[entry.id] = {name: Secret(Path(path).read_bytes().strip()) for name, path in entry.header_files.items()}
            if entry.ca_file:
                fields["ca_pem"] = Path(entry.ca_file).read_bytes()
        except OSError as error:
            raise SettingsError(f"{variable}: target {entry.id} names {error.filename}, which cannot be read.") from error
        targets.append(ExportTarget(**fields))
    return tuple(targets), headers
