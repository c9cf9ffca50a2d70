"""What an operator may set of the aggregator, read once from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.subjects import AGGREGATOR_INBOX
from control_plane.clickhouse.connection import ClickHouse
from control_plane.worker.bus import BusSettings
from control_plane.worker.environment import SettingsError, listen_address, nats_tls, nats_url, positive_seconds, secret_in_file


@dataclass(frozen=True)
class Settings:
    """bus, clickhouse: where they are; listen: (host, port) of the ops listener; the rest are seconds.

    ack_wait_seconds: after which the bus gives an unacknowledged event to another aggregator (or to this one, restarted).
    linger_seconds: how long a batch waits for more events, which bounds how fresh reports are.
    """

    bus: BusSettings
    clickhouse: ClickHouse
    listen: tuple[str, int]
    ack_wait_seconds: float = 30
    linger_seconds: float = 0.25
    drain_seconds: float = 20

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> "Settings":
        """Return the settings. Raises SettingsError, one sentence that names the variable."""
        clickhouse = ClickHouse.from_env(environ)
        if clickhouse is None:
            raise SettingsError("GLOTTIS_CLICKHOUSE_URL must be set, for example http://127.0.0.1:8123.")
        return cls(
            bus=BusSettings(
                nats_url(environ), secret_in_file(environ, "GLOTTIS_NATS_SEED_FILE"), AGGREGATOR_INBOX, nats_tls(environ)
            ),
            clickhouse=clickhouse,
            listen=listen_address(environ, "GLOTTIS_AGGREGATOR_LISTEN", "127.0.0.1:9464"),
            ack_wait_seconds=positive_seconds(environ, "GLOTTIS_AGGREGATOR_ACK_WAIT_SECONDS", 30),
            linger_seconds=positive_seconds(environ, "GLOTTIS_AGGREGATOR_LINGER_SECONDS", 0.25),
            drain_seconds=positive_seconds(environ, "GLOTTIS_AGGREGATOR_DRAIN_SECONDS", 20),
        )
