"""What five SDKs were recorded to send, and what of it the provider must receive, byte for byte.

`tests/golden/policy_heads/` holds each distinct recorded head with the head that must go up, or the reason why it is
refused. In the files the caller's token and the provider's credential are placeholders.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.secret import Secret
from contracts.snapshot import Grant, Model
from policy.decide import Admit, decide
from policy.facts import Facts
from policy.index import index_of
from policy.providers.profile import OPERATIONS
from policy.refusal import Refusal
from policy.rewrite import request_head
from policy.world import World
from tests.kit.heads import recorded_head
from tests.kit.identities import NOW, idp_token, voice_workspace

GOLDEN = Path(__file__).parents[2] / "golden" / "policy_heads"

WORLD = World(
    index_of(
        voice_workspace(
            plus_grants=(Grant(id="g9", workspace="w1", account="a-eu", subject="user:u-alice", operations=OPERATIONS),),
            plus_models=(Model(id="m9", workspace="w1", account="a-eu", name="ink-2", type="speech-to-text"),),
        )
    )
)
MODELS = {"tts.bytes": "sonic-3", "tts.sse": "sonic-3", "infill.bytes": "sonic-3", "stt.batch": "ink-whisper"}


def _cases() -> Iterator[object]:
    for file in sorted(GOLDEN.glob("*.txt")):
        for case in file.read_bytes().split(b"=== ")[1:]:
            name, _, rest = case.partition(b"\n")
            received, _, sent = rest.rstrip(b"\n").partition(b"\n--- sent\n")
            yield pytest.param(received, sent, id=f"{file.stem}-{name.decode()}")


@pytest.mark.parametrize(("received", "sent"), list(_cases()))
def test_a_recorded_head_reaches_the_provider_with_nothing_changed_but_the_change_table(received: bytes, sent: bytes) -> None:
    head = recorded_head(received.replace(b"CALLER_TOKEN", idp_token().encode()))
    decision = decide(head, None, WORLD, NOW)
    if not isinstance(decision, Refusal | Admit):
        endpoint = decision.endpoint  # type: ignore[union-attr]
        decision = decide(head, Facts(model=MODELS[endpoint.id], voice="v1", speaks=True), WORLD, NOW)

    if isinstance(decision, Refusal):
        answer = b"refused " + decision.reason.encode()
    else:
        assert isinstance(decision, Admit)
        upstream = request_head(decision.route, head.method, b"api.cartesia.test", Secret("PROVIDER_CREDENTIAL"), b"")
        answer = upstream.removesuffix(b"\r\n\r\n").replace(b"\r\n", b"\n")
    assert answer == sent
