"""The API against its own description: schemathesis asks for what the description allows and for what it forbids.

Run for two roles over seeded data: no request may end in a defect (5xx), and every answer must be one that is described.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.control_plane import RunningControlPlane

# Not asked: `positive_data_acceptance` (a valid document may name what is not there), `ignored_auth` and
# `object_level_authorization` (test_api asserts them by hand), `unsupported_method` (FastAPI answers HEAD of GET routes).
CHECKS = ",".join(
    (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
        "response_headers_conformance",
        "use_after_free",
        "ensure_resource_availability",
    )
)


EXCLUDED = {
    "POST /api/v1/bootstrap": "takes a secret that is good once, and is open to anybody",
    "POST /api/v1/accounts/{account}/credential/test": "calls a provider over the internet",
    "DELETE /api/v1/tokens/{token}": "would revoke the token that the run itself shows",
    "POST /api/v1/tokens/{token}/rotate": "as above, when the overlap is 0",
    "POST /api/v1/users/{user}/revoke-tokens": "as above",
    "POST /api/v1/service-accounts/{service_account}/revoke-tokens": "as above",
    "GET /api/v1/usage": "needs ClickHouse, which this control plane has none of: tests/integration/usage asks it",
    "GET /api/v1/usage/jobs": "needs ClickHouse",
    "POST /api/v1/usage/jobs": "needs ClickHouse",
    "GET /api/v1/usage/jobs/{job}": "needs ClickHouse",
    "GET /api/v1/spans": "needs ClickHouse",
    "GET /api/v1/spans/summary": "needs ClickHouse",
}
"""operation -> why it is not asked"""


async def seed(running: RunningControlPlane) -> str:
    """Make one of everything; return the token of a member who manages the account."""
    async with running.client() as client:
        for path, body in (
            ("/teams", {"name": "voice"}),
            ("/users", {"name": "grace", "teams": ["voice"]}),
            ("/service-accounts", {"name": "phone-agent"}),
            ("/issuers", {"name": "idp", "issuer": "https://idp.example.com", "audiences": ["glottis"]}),
            ("/accounts", {"name": "cartesia-eu", "provider": "cartesia", "origin": "https://api.cartesia.ai"}),
            ("/accounts/cartesia-eu/models", {"name": "sonic-3", "type": "text-to-speech"}),
            ("/accounts/cartesia-eu/collaborators", {"subject": "user:grace", "role": "manager"}),
            ("/prices", {"provider": "cartesia", "unit": "characters", "price": "0.00003"}),
        ):
            assert (await client.post(path, json=body)).status_code == 201, path
        answer = await client.post("/tokens", json={"principal": "user:grace", "audience": "glottis-api"})
    token: str = answer.json()["token"]
    return token


@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", ["owner", "member"])
async def test_the_api_keeps_to_its_description(control_plane: RunningControlPlane, role: str, tmp_path: Path) -> None:
    member = await seed(control_plane)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{control_plane.url}/api/v1/openapi.json",
        f"--header=Authorization: Bearer {control_plane.token if role == 'owner' else member}",
        f"--checks={CHECKS}",
        "--phases=examples,coverage,fuzzing,stateful",
        "--max-examples=5",
        "--seed=1",
        "--workers=1",
        "--request-timeout=30",
        *(f"--exclude-name={operation}" for operation in EXCLUDED),
        "--suppress-health-check=all",
        "--no-color",
        "--generation-database=none",
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )
    output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text[-20_000:]
    # A phase that finds nothing to do says so and passes.
    assert "Skipped" not in text, text[-20_000:]
