"""The official SDKs that the virtual environment does not hold: nothing changed but the base URL and the key.

Each program of `tests/sdks` calls every surface that its SDK knows: speech in one piece and as events, a file to text, and
the three kinds of sockets. `tests.kit.sdks` installs them.
"""

import pytest

from tests.component.sdks.conftest import Stage
from tests.kit.edge import CREDENTIAL, alice

PYTHON_SAYS = """\
bytes 3088
sse chunk timestamps done
socket chunk chunk done
stt hello
finalized transcript transcript flush_done done
turns connected turn.start turn.update turn.end
"""
# This SDK drops events that lack a field of later versions, also when it talks to the provider directly.
PYTHON_2_SAYS = """\
bytes 3088
sse done
socket 200 240
continued 440
stt hello
finalized transcript transcript flush_done done
"""
JAVASCRIPT_SAYS = """\
bytes 3088
sse chunk timestamps done
stt hello
voices v1
refused 403
socket chunk chunk done
finalized transcript transcript flush_done done
turns connected turn.start turn.update turn.end
"""


def check_credentials(stage: Stage) -> None:
    """Fail if a caller's token reached the provider, or if a session came without the account's credential."""
    received = [bytes(connection.received) for connection in stage.http.connections]
    assert all(alice().encode() not in data for data in received)
    assert all(CREDENTIAL.encode() in data for data in received)


@pytest.mark.parametrize("base", ["http://localhost:{plain}/cartesia", "https://127.0.0.1:{tls}/cartesia"])
async def test_the_python_sdk_2_speaks_and_listens(stage: Stage, base: str) -> None:
    said = await stage.run("py-2.0.17", "py-2.0.17/speak.py", _at(stage, base), alice())

    assert (said.out, said.status) == (PYTHON_2_SAYS * 2, 0), said.error
    check_credentials(stage)


@pytest.mark.parametrize(
    "bases", [("http://localhost:{plain}/cartesia", "ws://localhost:{plain}/cartesia"), ("https://localhost:{tls}/cartesia",)]
)
async def test_the_python_sdk_3_speaks_and_listens(stage: Stage, bases: tuple[str, ...]) -> None:
    base, *sockets = (_at(stage, base) for base in bases)
    said = await stage.run("py-3.5.1", "py-3.5.1/speak.py", base, alice(), *sockets)

    assert (said.out, said.status) == (PYTHON_SAYS * 2, 0), said.error
    check_credentials(stage)


@pytest.mark.parametrize("kind", ["require", "import"])
@pytest.mark.parametrize("sdk", ["js-3.5.1", "js-4.2.0"])
async def test_a_javascript_sdk_speaks_and_listens(stage: Stage, sdk: str, kind: str) -> None:
    said = await stage.run(sdk, "speak.cjs", _at(stage, "https://localhost:{tls}/cartesia"), alice(), kind)

    assert (said.out, said.status) == (JAVASCRIPT_SAYS, 0), said.error
    check_credentials(stage)


def _at(stage: Stage, base: str) -> str:
    return base.format(plain=stage.gateway.port, tls=stage.gateway.tls_port)
