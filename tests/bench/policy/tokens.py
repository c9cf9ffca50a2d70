"""What it costs to know a caller: `python -m tests.bench.policy.tokens`, part of `make bench`.

Processor time of one thread for `authenticate`, a token a call: at first sight, when the signature is checked with the
issuer's key, and afterwards, when that is remembered and times, principal and teams alone are judged. Medians over batches.
"""

import argparse
import statistics
import sys
import time

from contracts.snapshot import Issuer
from policy.authenticate import authenticate
from policy.facts import RequestHead
from policy.index import index_of
from policy.route import Caller
from policy.scan import Scan, scan_of
from policy.world import World
from tests.kit.identities import IDP, NOW, idp_token, jwks, signing_key, voice_workspace

ALGORITHMS = ("ES256", "EdDSA", "RS256", "PS256", "ES384")
BATCH = 100


def scans(tokens: list[str]) -> list[Scan]:
    """Return what the policy core knows of heads that carry these tokens."""
    found = []
    for token in tokens:
        scan = scan_of(RequestHead("GET", b"/cartesia/voices", b"", [(b"Authorization", b"Bearer " + token.encode())]), {})
        assert isinstance(scan, Scan)
        found.append(scan)
    return found


def cost(algorithm: str, batches: int) -> tuple[float, float]:
    """Return microseconds a token, (first sight, cached)."""
    key = signing_key(algorithm, f"bench-{algorithm}")
    issuer = Issuer(id="i-idp", workspace="w1", issuer=IDP, audiences=("glottis",), jwks=jwks(key), algorithms=(algorithm,))
    first, cached = [], []
    for batch in range(batches):
        world = World(index_of(voice_workspace(issuers=(issuer,))))
        heads = scans([idp_token(key, jti=f"{batch}-{number}") for number in range(BATCH)])
        authenticate(scans([idp_token(key, jti="warm")])[0], world, NOW)  # reads the issuer's key
        for figures in (first, cached):
            began = time.thread_time()
            for scan in heads:
                assert isinstance(authenticate(scan, world, NOW), Caller)
            figures.append((time.thread_time() - began) / BATCH * 1e6)
    return statistics.median(first), statistics.median(cached)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20, help=f"of {BATCH} tokens, an algorithm")
    batches = parser.parse_args().batches
    sys.stdout.write("| algorithm | first sight, µs | cached, µs |\n|---|---|---|\n")
    for algorithm in ALGORITHMS:
        first, cached = cost(algorithm, batches)
        sys.stdout.write(f"| {algorithm} | {first:.0f} | {cached:.1f} |\n")


if __name__ == "__main__":
    main()
