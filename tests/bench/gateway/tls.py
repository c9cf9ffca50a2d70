"""The gateway beside Envoy and nginx with TLS: towards clients, or towards the upstream: one core, one run.

`python -m tests.bench.gateway.tls clients|upstream`. The same loads as `tests.bench.gateway.side_by_side`. The kit's WebSocket
load speaks no TLS: towards clients an nginx on its core puts it on, for every target alike, and that core is the limit: trust
the CPU a round trip. Every connection is kept, so what is compared is what TLS costs a byte, not a handshake. Certificates are
P-256 of an authority made for the run; every side verifies.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.bench.gateway.peers import TLS_UPSTREAM_PORT, peers, plain_certificates, tls_put_on
from tests.bench.gateway.side_by_side import KIT, PORT, STT, UNITS, UPSTREAM, candidate, uses_native

TLS_PORT = 8443
CONNECTIONS, SOCKETS, FRAME_BYTES = 16, 100, 640


def measured(kit: Any, folder: Path, side: str, rounds: int, seconds: int, is_native: bool) -> dict[str, dict[str, list[Any]]]:
    """Return target -> kind -> rows of (rate, p50 ms, p99 ms, CPU µs a unit). kit: its module `side_by_side`."""
    certificates = plain_certificates(folder)
    to_clients = side == "clients"
    pair = {"GLOTTIS_GATEWAY_TLS_CERT": str(certificates.server), "GLOTTIS_GATEWAY_TLS_KEY": str(certificates.server_key)}
    more = pair | {"GLOTTIS_GATEWAY_TLS_LISTEN": f"127.0.0.1:{TLS_PORT}"} if to_clients else {}
    origin = UPSTREAM if to_clients else f"https://localhost:{TLS_UPSTREAM_PORT}"
    ca_pem = None if to_clients else certificates.authority.read_bytes()
    results: dict[str, dict[str, list[Any]]] = {}
    with (
        candidate(folder, is_native=is_native, origin=origin, ca_pem=ca_pem, more=more) as keys,
        peers(folder, keys, certificates, to_clients=to_clients, to_upstream=not to_clients) as ports,
        ExitStack() as running,
    ):
        token = (keys / "token").read_text()
        ports["Glottis"] = TLS_PORT if to_clients else PORT
        plain = running.enter_context(tls_put_on(folder, ports, certificates)) if to_clients else ports
        load = str(folder / "wsload")
        for _ in range(rounds):
            for name, port in ports.items():
                url = f"http{'s' if to_clients else ''}://127.0.0.1:{port}/cartesia/tts/bytes"
                path, at = STT if name == "Glottis" else "/cartesia/stt/websocket", plain[name]
                runs = {
                    "http": lambda url=url: kit.wrk(url, CONNECTIONS, seconds, token),
                    "ws": lambda at=at, path=path: kit.ws(load, at, path, SOCKETS, FRAME_BYTES, 0, seconds, token),
                }
                for kind, run in runs.items():
                    results.setdefault(name, {}).setdefault(kind, []).append(kit.measured(run, port, seconds, []))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="The gateway beside Envoy and nginx with TLS on one side.")
    parser.add_argument("side", choices=("clients", "upstream"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=int, default=4)
    parser.add_argument("--pure", action="store_true", help="the sources as they are, though compiled modules are there")
    options = parser.parse_args()
    if not (KIT / "side_by_side.py").exists():
        sys.exit(f"There is no benchmark kit at {KIT}: set BENCH_KIT to the folder that holds side_by_side.py.")
    sys.path.insert(0, str(KIT))
    import side_by_side as kit  # the kit is not a part of this project

    with tempfile.TemporaryDirectory() as folder:
        results = measured(kit, Path(folder), options.side, options.rounds, options.secs, uses_native(is_pure=options.pure))
    for kind in next(iter(results.values())):
        title, unit = UNITS[kind]
        sys.stdout.write(f"\n{title}; TLS towards {options.side}\n\n| target | {unit} | p50 ms | p99 ms | CPU µs ")
        sys.stdout.write("| rate ÷ Envoy | Envoy's CPU ÷ its own |\n|---|--:|--:|--:|--:|--:|--:|\n")
        theirs = results.get("envoy", {}).get(kind)
        for target, kinds in results.items():
            rate, p50, p99, cpu = (statistics.median(column) for column in zip(*kinds[kind], strict=True))
            ratios = " | "
            if theirs is not None:
                pairs = list(zip(kinds[kind], theirs, strict=True))
                ratios = f"{statistics.median(mine[0] / envoy[0] for mine, envoy in pairs):.2f} | "
                ratios += f"{statistics.median(envoy[3] / mine[3] for mine, envoy in pairs):.2f}"
            sys.stdout.write(f"| {target} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {cpu:.0f} | {ratios} |\n")


if __name__ == "__main__":
    main()
