"""One free request to a provider with an account's credential, behind the egress guard.

The name is resolved here, every address is judged by `policy.origins`, and the connection goes to the judged address with
the name kept for TLS and `Host`: a name that turns private between save and dial is refused. Redirects are not followed,
nothing of the answer but its status leaves this module.
"""

import asyncio
import socket
import ssl
import time
from collections.abc import Collection

from contracts.secret import Secret
from control_plane.accounts.schemas import CredentialTest
from control_plane.kit.problems import Problem
from control_plane.kit.rows import Row
from policy.origins import Origin, is_listed, is_refused_address, parse_origin

_DEADLINE_SECONDS = 10.0
_FREE_REQUEST = {"cartesia": ("/voices?limit=1", "Cartesia-Version: 2025-04-16\r\n"), "kokoro": ("/voices?limit=1", "")}
"""provider -> (target, extra header lines): answers 401 to a wrong credential and costs nothing"""


async def test_credential(account: Row, credential: Secret, allowed_origins: Collection[str]) -> CredentialTest:
    """Return what the provider said. Raises Problem origin_refused or provider_unreachable."""
    started = time.monotonic()
    origin = parse_origin(account["origin"])
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            address = await judged_address(origin, allowed_origins)
            status = await _status_of(account, origin, address, credential)
    except (OSError, ssl.SSLError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise Problem("provider_unreachable", f"No HTTP answer came from {origin.text}.") from error
    duration_ms = round((time.monotonic() - started) * 1000)
    return CredentialTest(accepted=200 <= status < 300, status=status, duration_ms=duration_ms)


async def judged_address(origin: Origin, allowed_origins: Collection[str]) -> str:
    """Return an address of the origin's host that may be dialled. Raises Problem origin_refused, OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    addresses = [str(address[0]) for *_, address in found]
    if not is_listed(origin, allowed_origins) and any(is_refused_address(address) for address in addresses):
        raise Problem("origin_refused", f"{origin.host} leads to an address that is not public.")
    return addresses[0]


async def _status_of(account: Row, origin: Origin, address: str, credential: Secret) -> int:
    target, extra = _FREE_REQUEST[account["provider"]]
    tls = None
    if origin.scheme == "https":
        pem = account["ca_pem"]
        tls = ssl.create_default_context(cadata=None if pem is None else pem.decode())
    reader, writer = await asyncio.open_connection(
        address, origin.port, ssl=tls, server_hostname=(account["tls_server_name"] or origin.host) if tls else None
    )
    try:
        host = origin.text.partition("://")[2]
        key = credential.reveal().decode("ascii")
        slot = f"Authorization: Bearer {key}" if account["credential_scheme"] == "bearer" else f"X-API-Key: {key}"
        head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{slot}\r\n{extra}Accept: application/json\r\nConnection: close\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        line = (await reader.readuntil(b"\n")).split(b" ", 2)
        if len(line) < 2 or not line[0].startswith(b"HTTP/1."):
            raise ValueError("no HTTP status line")
        return int(line[1])
    finally:
        writer.transport.abort()
