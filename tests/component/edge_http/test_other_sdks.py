"""Older and other official SDKs through the gateway. `make sdks` installs them; without that these tests are left out."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.doubles.cartesia import CartesiaDouble
from tests.kit.edge import Edge, alice

INSTALLED = Path(__file__).parents[3] / ".cache" / "sdks"
SCRIPTS = Path(__file__).parent / "sdks"
PYTHON_SAYS = "bytes 3088\nsse chunk timestamps done\nstt hello\n"
PYTHON_2_SAYS = "bytes 3088\nsse done\nstt hello\n"
"""this one drops events that lack a field of later versions, also when it talks to the double directly"""
JAVASCRIPT_SAYS = "bytes 3088\nstt hello\nvoices v1\nrefused 403\n"


@pytest.mark.parametrize(
    ("sdk", "script", "says"),
    [
        ("py-2.0.17", "speak_v2.py", PYTHON_2_SAYS),
        ("py-3.5.1", "speak_v3.py", PYTHON_SAYS),
        ("js-3.5.1", "speak.cjs", JAVASCRIPT_SAYS),
        ("js-4.2.0", "speak.cjs", JAVASCRIPT_SAYS),
    ],
)
async def test_an_sdk_speaks_through_the_gateway(gateway: Edge, double: CartesiaDouble, sdk: str, script: str, says: str) -> None:
    folder = INSTALLED / sdk
    if not folder.exists():
        pytest.skip("not installed: make sdks")
    program = str(folder / "bin" / "python") if sdk.startswith("py-") else shutil.which("node")
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        program,
        str(SCRIPTS / script),
        f"http://127.0.0.1:{gateway.port}/cartesia",
        alice(),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, error = await asyncio.wait_for(process.communicate(), 90)

    assert (out.decode(), process.returncode) == (says, 0), error.decode()
    assert all(alice().encode() not in bytes(connection.received) for connection in double.connections)
