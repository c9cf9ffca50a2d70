"""Calls the Python SDK 3.x: arguments are the base URL and the key. Prints one line a call."""

import sys

from cartesia import Cartesia

sdk = Cartesia(api_key=sys.argv[2], base_url=sys.argv[1])
wav = {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 16000}
raw = wav | {"container": "raw"}
voice = {"mode": "id", "id": "v1"}
audio = sdk.tts.generate(model_id="sonic-3", transcript="Hi", voice=voice, output_format=wav).read()
print("bytes", len(audio))  # noqa: T201
events = [event.type for event in sdk.tts.generate_sse(model_id="sonic-3", transcript="Hi", voice=voice, output_format=raw)]
print("sse", *events)  # noqa: T201
print("stt", sdk.stt.transcribe(file=("a.wav", b"RIFF" * 10, "audio/wav"), model="ink-whisper", language="en").text)  # noqa: T201
