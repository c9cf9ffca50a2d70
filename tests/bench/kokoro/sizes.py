"""What speech weighs on the wire: PCM, MP3 at 48 kbit/s and AAC at 32 kbit/s, bare and as base64 in events.

Run it with `make bench-audio`. The AWS article's table, measured anew on 20 sentences of our own, through /invocations.
AAC in fragmented MP4 needs PyAV, which is no part of the product but comes with the tests' recogniser (docs/adr/0088).
"""

from __future__ import annotations

import sys

import httpx

from tests.kit.sentences import TWENTY
from tests.kit.speech_server import SpeechServer, real_backend, speech_server

RATE = 24_000
FORMATS = {"PCM 16 bit": "pcm", "MP3 48k": "mp3", "AAC 32k fMP4": "aac"}


def fetched(server: SpeechServer, text: str, form: str) -> bytes:
    answer = httpx.post(f"{server.url}/invocations", json={"text": text, "format": form}, timeout=300)
    answer.raise_for_status()
    return answer.content


def base64_bytes(size: int) -> int:
    return (size + 2) // 3 * 4


def main() -> None:
    sizes = dict.fromkeys(FORMATS, 0)
    encoded = dict.fromkeys(FORMATS, 0)
    with speech_server(real_backend) as server:
        for text in TWENTY:
            for name, form in FORMATS.items():
                clip = fetched(server, text, form)
                sizes[name] += len(clip)
                encoded[name] += base64_bytes(len(clip))
    seconds = sizes["PCM 16 bit"] / 2 / RATE
    sys.stdout.write(f"{len(TWENTY)} clips, {seconds:.1f} s\n")
    sys.stdout.write("| | bytes | as base64 | kbit/s |\n|---|--:|--:|--:|\n")
    for name, size in sizes.items():
        sys.stdout.write(f"| {name} | {size:,} | {encoded[name]:,} | {size * 8 / seconds / 1000:.1f} |\n")


if __name__ == "__main__":
    main()
