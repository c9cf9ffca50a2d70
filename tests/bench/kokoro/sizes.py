"""What speech weighs on the wire: PCM, MP3 at 48 kbit/s and AAC at 32 kbit/s, bare and as base64 in events.

Run it with `make bench-audio`. The AWS article's table, measured anew on 20 sentences of our own. AAC in fragmented MP4
needs PyAV, whose wheels hold GPL codecs: it is measured where the recogniser brings it, and is no part of the product.
"""

from __future__ import annotations

import io
import sys

import av
import httpx
import numpy as np

from tests.kit.recogniser import pcm
from tests.kit.sentences import TWENTY
from tests.kit.speech_server import SpeechServer, real_backend, speech_server

RATE = 24_000


def fetched(server: SpeechServer, text: str, form: str) -> bytes:
    return httpx.post(f"{server.url}/invocations", json={"text": text, "format": form}, timeout=300).content


def aac(audio: np.ndarray) -> bytes:
    """Return AAC-LC at 32 kbit/s in a fragmented MP4, a fragment each half second."""
    target = io.BytesIO()
    with av.open(target, "w", format="mp4", options={"movflags": "frag_every_frame+empty_moov+default_base_moof"}) as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        stream.bit_rate = 32_000
        samples = np.ascontiguousarray(audio[None, :], dtype=np.float32)
        for start in range(0, samples.shape[1], 1024):
            frame = av.AudioFrame.from_ndarray(samples[:, start : start + 1024], format="fltp", layout="mono")
            frame.sample_rate = RATE
            frame.pts = start
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return target.getvalue()


def base64_bytes(size: int) -> int:
    return (size + 2) // 3 * 4


def main() -> None:
    sizes = {"PCM 16 bit": 0, "MP3 48k": 0, "AAC 32k fMP4": 0}
    encoded = dict.fromkeys(sizes, 0)
    seconds = 0.0
    with speech_server(real_backend) as server:
        for text in TWENTY:
            raw = fetched(server, text, "pcm")
            clips = (raw, fetched(server, text, "mp3"), aac(pcm(raw)))
            seconds += len(raw) / 2 / RATE
            for name, clip in zip(sizes, clips, strict=True):
                sizes[name] += len(clip)
                encoded[name] += base64_bytes(len(clip))
    sys.stdout.write(f"{len(TWENTY)} clips, {seconds:.1f} s\n")
    sys.stdout.write(f"{'':14}{'bytes':>12}{'base64':>12}{'kbit/s':>9}\n")
    for name, size in sizes.items():
        sys.stdout.write(f"{name:14}{size:12,}{encoded[name]:12,}{size * 8 / seconds / 1000:9.1f}\n")


if __name__ == "__main__":
    main()
