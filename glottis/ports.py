"""The ports of `glottis up`: fixed by default, so that a client's settings stay right; all loopback.

A data folder keeps the ports of its first start in `ports.json`. Tokens that were given out name the control plane's
address as their issuer, and the Kokoro account names Kokoro's, so a later start on other ports would break every call:
only the gateway's public ports may move.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Final

from glottis.errors import SetupError
from glottis.keys import write_private

HOST: Final = "127.0.0.1"
# Named by callers alone: nothing that is stored names them.
_PUBLIC: Final = ("http", "https")
# The state of a listening socket in /proc/net/tcp.
_LISTENING: Final = "0A"


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
        """Return these ports with the gateway's public ones replaced where they are named.

        Raises SetupError if two listeners would have the same one.
        """
        found = replace(self, http=http or self.http, https=https or self.https)
        counts = Counter(asdict(found).values())
        if doubled := [f"{port} ({name})" for name, port in asdict(found).items() if counts[port] > 1]:
            raise SetupError(f"Two listeners cannot share a port: {', '.join(doubled)}.", "Name another port for one of them.")
        return found

    def ensure_free(self, *, are_kept: bool) -> None:
        """Raise SetupError naming every port that another program listens on. are_kept: the data folder is tied to them."""
        taken = {name: port for name, port in asdict(self).items() if _is_taken(port)}
        if not taken:
            return
        if not are_kept:
            to_do = "Stop that program, or let Glottis use others: --port-base 20000"
        elif taken.keys() <= set(_PUBLIC):
            to_do = "Stop that program, or move the gateway: " + " ".join(f"--{name}-port PORT" for name in taken)
        else:
            to_do = (
                "Stop that program: this data folder keeps the ports of its first start. To use others, name another --data-dir."
            )
        named = ", ".join(f"{port} ({name})" for name, port in taken.items())
        raise SetupError(f"In use by another program on {HOST}: port {named}.", to_do)


def kept_ports(data_folder: Path) -> Ports | None:
    """Return the ports that earlier starts used, None in a new folder. Raises SetupError if the file is damaged."""
    file = _file(data_folder)
    try:
        return Ports(**{name: int(port) for name, port in json.loads(file.read_bytes()).items()})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as fault:
        raise SetupError(f"Cannot read {file}: {fault.strerror}.", "Run as the user that made the data folder.") from fault
    except (ValueError, TypeError, AttributeError) as error:
        raise SetupError(f"{file} cannot be read as ports.", "Restore it from a backup.") from error


def keep_ports(data_folder: Path, ports: Ports) -> None:
    """Remember the ports for later starts."""
    if kept_ports(data_folder) != ports:
        write_private(_file(data_folder), json.dumps(asdict(ports), indent=2).encode() + b"\n")


def chosen_ports(data_folder: Path, port_base: int | None, http_port: int | None, https_port: int | None) -> Ports:
    """Return the ports that the options ask for: of what they leave open, the kept ones, else the defaults.

    Raises SetupError for a base without room, a port named twice, or ports that the folder cannot be moved to.
    """
    kept = kept_ports(data_folder)
    ports = (kept or Ports()) if port_base is None else Ports.from_base(port_base)
    ports = ports.with_public(http=http_port, https=https_port)
    if kept is not None and ports != replace(kept, http=ports.http, https=ports.https):
        listed = ", ".join(f"{name} {port}" for name, port in asdict(kept).items())
        raise SetupError(
            f"{data_folder} keeps the ports of its first start ({listed}): its tokens and its Kokoro account name them.",
            "Leave --port-base out (--http-port and --https-port may change), or name another --data-dir.",
        )
    return ports


def listens_itself(pid: int, port: int) -> bool | None:
    """Return whether this process holds a listening socket on the port; None where the system does not tell (proc(5))."""
    try:
        listening = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    except (OSError, ValueError, IndexError):
        return None
    if not listening:
        return None
    try:
        return bool(listening & _open_files(pid))
    except OSError:
        # Nobody may look into a process that has ended and was not waited for yet, nor into one that is protected.
        return None if _is_running(pid) else False


def _listening_inodes(port: int) -> Iterator[str]:
    for table in filter(Path.exists, (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))):
        for line in table.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _open_files(pid: int) -> set[str]:
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            found.add(str(descriptor.readlink()))
    return found


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def _file(data_folder: Path) -> Path:
    return data_folder / "ports.json"


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False
