"""What the gateway is told by its environment, checked. Read once, by `glottis gateway`; nothing reads the environment later.

A mistake is a `SettingsError`: one sentence that names the variable and says what to do. Secrets are wrapped here and
never printed. docs/operations.md lists the variables; read `gateway.main` for what they start.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from contracts.secret import Secret
from contracts.subjects import pod_subject
from gateway.edge.context import Limits
from gateway.upstream.origin import PoolSettings
from policy.providers.registry import PROFILES

_KEY_BYTES = 32


class SettingsError(Exception):
    """A variable that is missing or wrong; the text is one sentence for the operator, without secrets."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen; port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Tls:
    """The second public listener: address, PEM certificate chain, PEM key."""

    listen: Address
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Feed:
    """The way to the control plane. `manifest_keys`: raw Ed25519 public keys; `fleet_keys`: raw X25519 private keys."""

    nats_url: str
    nats_seed: Secret | None
    nats_ca: Path | None
    """PEM file of the authorities that sign the server's certificate (`tls://…`); None: the system's"""
    manifest_keys: tuple[bytes, ...]
    fleet_keys: tuple[Secret, ...]
    state_folder: Path
    """where the last-known-good configuration is kept"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the process is started with. Exactly one of `feed` and `config` is set."""

    listen: Address
    tls: Tls | None
    admin_listen: Address
    pod: str
    feed: Feed | None
    config: Path | None
    """a workspace file to run from alone"""
    environ: Mapping[str, str] = field(repr=False)
    """for the references (`env:NAME`) of that file alone"""
    spool_folder: Path | None
    """None, with `config` alone: events are counted and logged, not kept"""
    spool_bytes: int
    max_config_age_seconds: float
    drain_delay_seconds: float
    """from SIGTERM: how long new exchanges are still taken, so that load balancers notice first"""
    drain_seconds: float
    """after that: how long open exchanges may take to end"""
    allowed_private_origins: frozenset[str]
    root_mounts: Mapping[bytes, str]
    """host name -> provider whose paths begin at that host's root, for clients that drop a base URL's path"""
    limits: Limits
    """each has a variable of its name, for example GLOTTIS_GATEWAY_JUDGED_BODY_BYTES"""
    pool: PoolSettings
    """likewise, for example GLOTTIS_GATEWAY_UPSTREAM_WARM_CONNECTIONS"""
    log_format: str
    """empty: `console` on a terminal, else `json`"""
    log_level: str

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Return the settings. Raises SettingsError."""
        config = _path(environ, "GLOTTIS_GATEWAY_CONFIG")
        feed = None if config is not None else _feed(environ)
        spool_folder = _path(environ, "GLOTTIS_GATEWAY_SPOOL_DIR")
        if feed is not None and spool_folder is None:
            raise SettingsError("GLOTTIS_GATEWAY_SPOOL_DIR is not set: name a folder, best on a tmpfs that survives the process.")
        private_origins = frozenset(
            origin.strip() for origin in environ.get("GLOTTIS_ALLOWED_PRIVATE_ORIGINS", "").split(",") if origin.strip()
        )
        return cls(
            listen=_address(environ, "GLOTTIS_GATEWAY_LISTEN", "127.0.0.1:8780"),
            tls=_tls(environ),
            admin_listen=_address(environ, "GLOTTIS_GATEWAY_ADMIN_LISTEN", "127.0.0.1:8781"),
            pod=environ.get("GLOTTIS_POD_NAME") or environ.get("HOSTNAME") or "gateway",
            feed=feed,
            config=config,
            environ=environ if config is not None else {},
            spool_folder=spool_folder if feed is not None else None,
            spool_bytes=int(_number(environ, "GLOTTIS_GATEWAY_SPOOL_BYTES", 64 * 1024 * 1024, 64 * 1024)),
            max_config_age_seconds=_number(environ, "GLOTTIS_GATEWAY_MAX_CONFIG_AGE_SECONDS", 3600, 1),
            drain_delay_seconds=_number(environ, "GLOTTIS_GATEWAY_DRAIN_DELAY_SECONDS", 0, 0),
            drain_seconds=_number(environ, "GLOTTIS_GATEWAY_DRAIN_SECONDS", 25, 0),
            allowed_private_origins=private_origins,
            root_mounts=_root_mounts(environ),
            limits=Limits(**_numbers(environ, "GLOTTIS_GATEWAY_", Limits)),
            pool=PoolSettings(
                **_numbers(environ, "GLOTTIS_GATEWAY_UPSTREAM_", PoolSettings), allowed_private_origins=private_origins
            ),
            log_format=_one_of(environ, "GLOTTIS_LOG_FORMAT", ("json", "console"), ""),
            log_level=_one_of(environ, "GLOTTIS_LOG_LEVEL", ("debug", "info", "warning", "error"), "info"),
        )

    @property
    def pod_token(self) -> str:
        """Return the pod's name as one token of a subject or a file name."""
        return pod_subject(self.pod).rpartition(".")[2]


def _feed(environ: Mapping[str, str]) -> Feed:
    state_folder = _path(environ, "GLOTTIS_GATEWAY_STATE_DIR")
    if not environ.get("GLOTTIS_NATS_URL") or state_folder is None:
        missing = "GLOTTIS_NATS_URL" if not environ.get("GLOTTIS_NATS_URL") else "GLOTTIS_GATEWAY_STATE_DIR"
        raise SettingsError(f"{missing} is not set: set it, or run from a file with --config gateway.yaml.")
    seed_file = _path(environ, "GLOTTIS_NATS_SEED_FILE")
    return Feed(
        nats_url=environ["GLOTTIS_NATS_URL"],
        nats_seed=None if seed_file is None else Secret(_read("GLOTTIS_NATS_SEED_FILE", seed_file).strip()),
        nats_ca=_path(environ, "GLOTTIS_NATS_CA_FILE"),
        manifest_keys=_keys(environ, "GLOTTIS_MANIFEST_PUBLIC_KEY_FILE"),
        fleet_keys=tuple(Secret(key) for key in _keys(environ, "GLOTTIS_FLEET_KEY_FILE")),
        state_folder=state_folder,
    )


def _tls(environ: Mapping[str, str]) -> Tls | None:
    if not environ.get("GLOTTIS_GATEWAY_TLS_LISTEN"):
        return None
    certificate, key = _path(environ, "GLOTTIS_GATEWAY_TLS_CERT"), _path(environ, "GLOTTIS_GATEWAY_TLS_KEY")
    if certificate is None or key is None:
        raise SettingsError("GLOTTIS_GATEWAY_TLS_LISTEN needs GLOTTIS_GATEWAY_TLS_CERT and GLOTTIS_GATEWAY_TLS_KEY: PEM files.")
    return Tls(_address(environ, "GLOTTIS_GATEWAY_TLS_LISTEN", ""), certificate, key)


def _address(environ: Mapping[str, str], name: str, default: str) -> Address:
    text = environ.get(name) or default
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise SettingsError(f"{name} is {text!r}: write it as host:port, for example 127.0.0.1:8780.")
    return Address(host, int(port))


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _number(environ: Mapping[str, str], name: str, default: float, smallest: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = smallest - 1
    if not smallest <= value < float("inf"):
        raise SettingsError(f"{name} is {text!r}: write a number of at least {smallest:g}.")
    return value


def _root_mounts(environ: Mapping[str, str]) -> dict[bytes, str]:
    mounts = {}
    for entry in environ.get("GLOTTIS_GATEWAY_ROOT_MOUNTS", "").split(","):
        host, _, provider = entry.strip().partition("=")
        if not host:
            continue
        if provider not in PROFILES:
            raise SettingsError(
                f"GLOTTIS_GATEWAY_ROOT_MOUNTS holds {entry.strip()!r}: write host=provider, "
                f"where the provider is one of {', '.join(sorted(PROFILES))}."
            )
        mounts[host.lower().encode()] = provider
    return mounts


def _numbers(environ: Mapping[str, str], prefix: str, defaults: Any) -> dict[str, Any]:  # Any: a dataclass of numbers
    """Return the numbers that the environment sets, by field; each has a variable of its name behind the prefix."""
    given: dict[str, Any] = {}  # Any: int or float, as each field's default is
    for number in fields(defaults):
        name = prefix + number.name.upper()
        if isinstance(number.default, int | float) and environ.get(name):
            value = _number(environ, name, 0, 0)
            given[number.name] = int(value) if isinstance(number.default, int) else value
    return given


def _one_of(environ: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = environ.get(name) or default
    if value != default and value not in choices:
        raise SettingsError(f"{name} is {value!r}: write one of {', '.join(choices)}.")
    return value


def _read(name: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as fault:
        raise SettingsError(f"{name} cannot be read: {path}: {fault.strerror}.") from fault


def _keys(environ: Mapping[str, str], name: str) -> tuple[bytes, ...]:
    """Return the keys of a file: one a line in base64, several while keys are changed; `#` begins a comment."""
    path = _path(environ, name)
    if path is None:
        raise SettingsError(f"{name} is not set: name the file, one raw {_KEY_BYTES}-byte key in base64 a line.")
    keys = []
    for number, line in enumerate(_read(name, path).splitlines(), start=1):
        text = line.partition(b"#")[0].strip()
        if not text:
            continue
        try:
            key = base64.b64decode(text, validate=True)
        except binascii.Error:
            key = b""
        if len(key) != _KEY_BYTES:
            raise SettingsError(f"{name}, line {number} of {path}, is not a raw {_KEY_BYTES}-byte key in base64.")
        keys.append(key)
    if not keys:
        raise SettingsError(f"{name}: {path} holds no key.")
    return tuple(keys)
