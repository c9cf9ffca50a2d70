"""Whether memory grows with streams that clients abort: `python -m tests.bench.gateway.aborted_streams --count 100000`.

A gateway of its own process (`glottis gateway --config`) relays answers that never end; each client hangs up after the
first bytes. Prints the gateway's resident memory and open descriptors after every tenth of the streams: the slope is what
is looked at, and that the descriptors come back.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.kit.gateway import gateway_process
from tests.kit.identities import IDP, jwks, signing_key

AT_ONCE = 50
FIRST = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n"
CONFIG = """
version: 1
workspace: {{id: local}}
issuers:
  - {{name: idp, issuer: "{issuer}", audiences: [glottis], jwks: "file:jwks.json", algorithms: [ES256],
     groups_claim: groups, group_teams: {{voice: voice}}, admits_unregistered: true}}
teams: [{{name: voice}}]
accounts:
  - name: cartesia
    provider: cartesia
    origin: {origin}
    credential: value:sk_real
    collaborators: [{{subject: "team:voice"}}]
    models: [{{name: sonic-3, type: text-to-speech}}]
"""


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the first request and leave the answer open until the other side goes."""
    try:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(FIRST)
        while await reader.read(65536):
            pass
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def abort_one(port: int, request: bytes) -> None:
    """Begin a stream, see its first bytes, hang up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"data: ")
    if not head.startswith(b"HTTP/1.1 200"):
        sys.exit(head.decode())
    writer.transport.abort()


async def measure(folder: Path, count: int) -> None:
    """Abort so many streams; print what the gateway holds on the way."""
    upstream = await asyncio.start_server(endless, "127.0.0.1", 0)
    origin = f"http://127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
    (folder / "jwks.json").write_bytes(jwks(signing_key()))
    (folder / "gateway.yaml").write_text(CONFIG.format(issuer=IDP, origin=origin))
    now = int(time.time())
    claims = {"iss": IDP, "aud": "glottis", "sub": "ann", "iat": now, "exp": now + 86400, "groups": ["voice"]}
    body = json.dumps({"model_id": "sonic-3", "transcript": "Hello.", "voice": {"mode": "id", "id": "v1"}}).encode()
    request = (
        f"POST /cartesia/tts/sse HTTP/1.1\r\nHost: gateway\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {signing_key().token(claims)}\r\nContent-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    variables = {"GLOTTIS_ALLOWED_PRIVATE_ORIGINS": origin}
    with gateway_process(folder, variables, "--config", str(folder / "gateway.yaml")) as gateway:
        await gateway.child.until(gateway.is_ready)
        port = int(gateway.url.rpartition(":")[2])
        process = Path(f"/proc/{gateway.child.pid}")
        for tenth in range(11):
            if tenth:
                for _ in range(count // 10 // AT_ONCE):
                    await asyncio.gather(*(abort_one(port, request) for _ in range(AT_ONCE)))
            await asyncio.sleep(1.5)  # the last aborts reach the gateway, and its one-second look at connections
            resident = int((process / "statm").read_text().split()[1]) * 4
            descriptors = len(list((process / "fd").iterdir()))
            sys.stdout.write(f"{tenth * count // 10:8} streams  {resident:8} KiB  {descriptors:5} descriptors\n")
            sys.stdout.flush()
    upstream.close()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder), options.count))


if __name__ == "__main__":
    main()
