"""The names on the bus, and who may use which.

One table for every process, for the embedded server's configuration and for the Helm chart. Gateways read configuration,
write events and hold the leases of single-use tokens; nobody else writes events; gateways neither write configuration nor
consume, purge, delete or acknowledge event streams. Each role has an inbox prefix of its own, so that no role can read
another's replies.
"""

import hashlib
from dataclasses import dataclass

CONFIG_BUCKET = "glottis_config"
MANIFEST_KEY = "manifest"
PRICES_KEY = "prices"
EXPORTS_KEY = "exports"
CHUNK_PREFIX = "chunk."

REVOCATIONS_BUCKET = "glottis_revocations"

LEASES_BUCKET = "glottis_leases"
SESSION_LEASE_SECONDS = 30
"""how long the entry of a single-use token's open session stays without being written again: the bucket's age limit"""

USAGE_STREAM = "GLOTTIS_USAGE"
SPANS_STREAM = "GLOTTIS_SPANS"
USAGE_CONSUMER = "aggregator"
SPANS_STORE_CONSUMER = "aggregator-spans"
SPANS_EXPORT_CONSUMER = "exporter"

_USAGE_PREFIX = "glottis.usage."
_SPANS_PREFIX = "glottis.spans."
_PODS_PREFIX = "glottis.pods."
_SESSIONS_PREFIX = "glottis.sessions."
USAGE_SUBJECTS = _USAGE_PREFIX + ">"
SPANS_SUBJECTS = _SPANS_PREFIX + ">"
POD_SUBJECTS = _PODS_PREFIX + ">"
SESSION_SUBJECTS = _SESSIONS_PREFIX + ">"

NO_WORKSPACE = "none"
"""stands in subjects for an exchange whose workspace is not known"""


def chunk_key(name: str) -> str:
    """Return the key of a chunk in the config bucket; name: its SHA-256, hexadecimal."""
    return CHUNK_PREFIX + name


def revocation_key(workspace: str, kind: str, target: str) -> str:
    """Return the key of a revocation or of an end-session command (kind `session`, target the exchange)."""
    return f"{workspace}.{kind}.{target}"


def session_lease_key(workspace: str, token: str) -> str:
    """Return the key that a single-use token's open session holds; token: its `jti`, which may hold any characters."""
    return f"{workspace}.{hashlib.sha256(token.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def usage_subject(workspace: str) -> str:
    """Return the subject that a workspace's usage events are published on."""
    return _USAGE_PREFIX + (workspace or NO_WORKSPACE)


def spans_subject(workspace: str) -> str:
    """Return the subject that a workspace's span events are published on."""
    return _SPANS_PREFIX + (workspace or NO_WORKSPACE)


def pod_subject(pod: str) -> str:
    """Return the subject that a pod's status is published on; `.` and spaces in its name become `_`."""
    return _PODS_PREFIX + _token(pod)


def sessions_subject(pod: str) -> str:
    """Return the subject that a pod's open sessions are told on; its name is spelled as above."""
    return _SESSIONS_PREFIX + _token(pod)


def _token(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in name)


@dataclass(frozen=True)
class Permissions:
    """What one role may publish to and subscribe to (NATS subject patterns), and its inbox prefix."""

    inbox: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def _watcher_of(bucket: str) -> tuple[str, ...]:
    """What reading and watching a key-value bucket asks of JetStream (found by denying each, nats-py 2.16)."""
    stream = f"KV_{bucket}"
    return (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.>",
        f"$JS.API.CONSUMER.INFO.{stream}.*",
        f"$JS.API.CONSUMER.DELETE.{stream}.>",
        f"$JS.API.DIRECT.GET.{stream}",
        f"$JS.API.DIRECT.GET.{stream}.>",
        f"$JS.API.STREAM.MSG.GET.{stream}",
        f"$JS.FC.{stream}.>",
    )


def _holder_in(bucket: str) -> tuple[str, ...]:
    """What taking, keeping and giving back keys of one's own asks of JetStream: no watch, and no key is ever listed."""
    stream = f"KV_{bucket}"
    return (f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.DIRECT.GET.{stream}.>", f"$KV.{bucket}.>")


def _reader_of(stream: str, *consumers: str) -> tuple[str, ...]:
    """What a durable pull consumer asks of JetStream."""
    subjects = [f"$JS.API.STREAM.INFO.{stream}"]
    for consumer in consumers:
        subjects += [
            f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}",
            f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.>",
            f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.{consumer}",
            f"$JS.API.CONSUMER.INFO.{stream}.{consumer}",
            f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
            f"$JS.ACK.{stream}.{consumer}.>",
        ]
    return tuple(subjects)


GATEWAY_INBOX = "_INBOX_gateway"
CONTROL_PLANE_INBOX = "_INBOX_control_plane"
AGGREGATOR_INBOX = "_INBOX_aggregator"
EXPORTER_INBOX = "_INBOX_exporter"

ROLES: dict[str, Permissions] = {
    "gateway": Permissions(
        inbox=GATEWAY_INBOX,
        publish=(
            "$JS.API.INFO",
            *_watcher_of(CONFIG_BUCKET),
            *_watcher_of(REVOCATIONS_BUCKET),
            *_holder_in(LEASES_BUCKET),
            USAGE_SUBJECTS,
            SPANS_SUBJECTS,
            POD_SUBJECTS,
            SESSION_SUBJECTS,
        ),
        subscribe=(GATEWAY_INBOX + ".>",),
    ),
    "control-plane": Permissions(
        inbox=CONTROL_PLANE_INBOX,
        publish=(
            "$JS.API.INFO",
            "$JS.API.STREAM.CREATE.*",
            "$JS.API.STREAM.UPDATE.*",
            "$JS.API.STREAM.INFO.*",
            f"$JS.API.STREAM.PURGE.KV_{CONFIG_BUCKET}",
            f"$JS.API.STREAM.PURGE.KV_{REVOCATIONS_BUCKET}",
            *_watcher_of(CONFIG_BUCKET),
            *_watcher_of(REVOCATIONS_BUCKET),
            f"$KV.{CONFIG_BUCKET}.>",
            f"$KV.{REVOCATIONS_BUCKET}.>",
        ),
        subscribe=(CONTROL_PLANE_INBOX + ".>", POD_SUBJECTS, SESSION_SUBJECTS),
    ),
    "aggregator": Permissions(
        inbox=AGGREGATOR_INBOX,
        publish=(
            "$JS.API.INFO",
            *_watcher_of(CONFIG_BUCKET),
            *_reader_of(USAGE_STREAM, USAGE_CONSUMER),
            *_reader_of(SPANS_STREAM, SPANS_STORE_CONSUMER),
        ),
        subscribe=(AGGREGATOR_INBOX + ".>",),
    ),
    "exporter": Permissions(
        inbox=EXPORTER_INBOX,
        publish=("$JS.API.INFO", *_watcher_of(CONFIG_BUCKET), *_reader_of(SPANS_STREAM, SPANS_EXPORT_CONSUMER)),
        subscribe=(EXPORTER_INBOX + ".>",),
    ),
}
"""role -> what its NATS user may do; everything else is denied. Streams and buckets are made by the control plane."""
