"""A gateway that runs from a file, in a process of its own, for benchmarks of memory: started, looked at, and stopped.

`alone(origin)` gives the process and the head of a caller's token; `Looks` prints what the process holds, one line a look.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.gateway import GatewayProcess, gateway_process
from tests.kit.identities import IDP, jwks, signing_key

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
    {trust}
    credential: value:sk_real
    collaborators: [{{subject: "team:voice"}}]
    models: [{{name: sonic-3, type: text-to-speech}}, {{name: ink-whisper, type: speech-to-text}}]
"""


@dataclass
class Looks:
    """What the gateway's process holds, from look to look."""

    pid: int
    resident_kib: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def look(self, what: str) -> None:
        """Look once, and print."""
        process = Path(f"/proc/{self.pid}")
        self.resident_kib.append(int((process / "statm").read_text().split()[1]) * 4)
        self.descriptors.append(len(list((process / "fd").iterdir())))
        sys.stdout.write(f"{what:32} {self.resident_kib[-1] / 1024:8.1f} MB  {self.descriptors[-1]:6} descriptors\n")
        sys.stdout.flush()

    @property
    def most_mb(self) -> float:
        """Return the most memory that the process ever held, in MB (2**20 bytes)."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


@dataclass
class Alone:
    """A gateway that takes work."""

    gateway: GatewayProcess
    token: str
    port: int = 0
    """the public one, once it is ready: asked for once, as finding it means reading the whole log"""

    async def until_ready(self) -> None:
        """Wait until it takes work."""
        await self.gateway.child.until(self.gateway.is_ready)
        self.port = int(self.gateway.url.rpartition(":")[2])

    def stop(self) -> None:
        """Tell it to stop, and print how it ended: nothing may be left that keeps it, or makes it complain."""
        status = self.gateway.child.stop()
        complaints = [line["event"] for line in self.gateway.lines() if line["level"] in ("error", "critical")]
        complaints += [line for line in self.gateway.child.output.splitlines() if not line.startswith("{")]
        sys.stdout.write(f"stopped: exit status {status}, {len(complaints)} complaints {complaints[:3] or ''}\n")


@contextmanager
def alone(origin: str, authority: Path | None = None) -> Iterator[Alone]:
    """Start a gateway whose one account is at this origin; it need not be ready yet."""
    now = int(time.time())
    claims = {"iss": IDP, "aud": "glottis", "sub": "ann", "iat": now, "exp": now + 86400, "groups": ["voice"]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jwks.json").write_bytes(jwks(signing_key()))
        trust = f"ca: file:{authority}" if authority is not None else ""
        (folder / "gateway.yaml").write_text(CONFIG.format(issuer=IDP, origin=origin, trust=trust))
        variables = {"GLOTTIS_ALLOWED_PRIVATE_ORIGINS": origin}
        with gateway_process(folder, variables, "--config", str(folder / "gateway.yaml")) as gateway:
            yield Alone(gateway, signing_key().token(claims))
