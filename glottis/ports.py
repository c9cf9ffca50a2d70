"""The ports of `glottis up`: fixed by default, so that a client's settings stay right; all loopback."""

from __future__ import annotations

import socket
from dataclasses import dataclass, fields, replace
from typing import Final

from glottis.errors import SetupError

HOST: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """One port a listener. The first three are for people; the others are between our own processes."""

    http: int = 8080
    https: int = 8443
    control_plane: int = 8090
    gateway_admin: int = 8081
    aggregator: int = 8091
    exporter: int = 8092
    kokoro: int = 8880
    nats: int = 14222
    postgres: int = 15432
    clickhouse: int = 18123

    @classmethod
    def from_base(cls, base: int) -> Ports:
        """Return consecutive ports from `base` on, in the order of the fields. Raises SetupError if they do not fit."""
        names = [field.name for field in fields(cls)]
        if not 1 <= base <= 65536 - len(names):
            raise SetupError(f"--port-base {base} leaves no room for {len(names)} ports.", "Name one up to 65000.")
        return cls(**{name: base + offset for offset, name in enumerate(names)})

    def with_public(self, http: int | None, https: int | None) -> Ports:
        """Return these ports with the gateway's public ones replaced where they are named."""
        return replace(self, http=http or self.http, https=https or self.https)

    def ensure_free(self) -> None:
        """Raise SetupError naming every port that another program listens on."""
        taken = [f"{getattr(self, field.name)} ({field.name})" for field in fields(self) if _is_taken(getattr(self, field.name))]
        if taken:
            raise SetupError(
                f"In use by another program on {HOST}: port {', '.join(taken)}.",
                "Stop that program, or let Glottis use others: --port-base 20000",
            )


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
