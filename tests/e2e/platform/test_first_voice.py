"""The first voice, whole: `glottis demo` on a machine's loopback, its audio heard, its calls counted, its restarts."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import textwrap
import wave
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from glottis import first_voice
from tests.kit.recogniser import Recogniser, pcm, word_error_rate
from tests.kit.stack import RunningStack, stack_in_a_folder
from tests.kit.usage import until

pytestmark = pytest.mark.timeout(600)

SAID = {
    "bytes.wav": first_voice.BYTES,
    "sse.wav": first_voice.SSE,
    "websocket-whole.wav": first_voice.WHOLE,
    "websocket-pieces.wav": "".join(first_voice.PIECES),
}


@pytest.fixture(scope="module")
def demo() -> Iterator[RunningStack]:
    """A demo that has made its calls and stays up."""
    with stack_in_a_folder() as stack:
        stack.start("demo")
        stack.wait_for("Ctrl-C stops everything.")
        yield stack


@pytest.fixture(scope="module")
def counted(demo: RunningStack) -> list[dict[str, Any]]:
    """The usage of the demo's own calls, before any test makes others. Any: JSON."""
    return demo.usage(("by", "exchange,endpoint,user,model"))


def read_wav(stack: RunningStack, name: str) -> tuple[bytes, int]:
    with wave.open(str(stack.folder / "demo" / name)) as file:
        return file.readframes(file.getnframes()), file.getframerate()


def seconds(audio: bytes, rate: int) -> float:
    """Return how long 16-bit samples play."""
    return len(audio) / 2 / rate


def test_the_demos_audio_is_intelligible(demo: RunningStack) -> None:
    listener = Recogniser.shared()
    heard = []
    for name, said in SAID.items():
        audio, rate = read_wav(demo, name)
        heard.append((said, listener.heard(pcm(audio), rate)))

    assert word_error_rate(heard) <= 0.05, heard


def test_every_call_of_the_demo_is_counted_once_with_its_characters(counted: list[dict[str, Any]]) -> None:
    assert sorted((row["endpoint"], row["units"]["characters"], row["exchanges"]) for row in counted) == sorted(
        [
            ("tts.bytes", len(first_voice.BYTES), 1),
            ("tts.sse", len(first_voice.SSE), 1),
            ("tts.websocket", len(first_voice.WHOLE), 1),
            ("tts.websocket", len("".join(first_voice.PIECES)), 1),
        ]
    )


def test_the_table_shows_each_calls_characters_and_cost(demo: RunningStack) -> None:
    line = next(line for line in demo.output.splitlines() if line.startswith("tts.bytes"))

    assert re.search(rf"^tts\.bytes +\d+ ms +\d+\.\d\d s +{len(first_voice.BYTES)} +0\.00\d+ USD +demo/bytes\.wav$", line)


def test_the_audio_in_the_table_is_as_long_as_the_file(demo: RunningStack) -> None:
    audio, rate = read_wav(demo, "sse.wav")
    line = next(line for line in demo.output.splitlines() if line.startswith("tts.sse"))

    assert f" {seconds(audio, rate):.2f} s " in line


def test_every_call_is_counted_for_the_user_whose_token_it_had(counted: list[dict[str, Any]]) -> None:
    assert {(row["user_name"], row["model"]) for row in counted} == {("ada", "kokoro-82m")}


def test_usage_by_user_and_model_is_shown_with_its_cost(demo: RunningStack) -> None:
    characters = sum(map(len, SAID.values()))
    row = rf"^ada +kokoro-82m +4 +{characters} +(\d+\.\d+) s +4 +{characters * 0.000002:.6f}$"
    line = re.search(row, demo.output, re.MULTILINE)

    assert line is not None
    assert float(line[1]) == pytest.approx(sum(seconds(*read_wav(demo, name)) for name in SAID), abs=0.01)


@pytest.mark.usefixtures("counted")
def test_the_printed_program_runs_as_it_is_printed(demo: RunningStack) -> None:
    printed = demo.output.partition("# pip install cartesia\n")[2].partition("\nCtrl-C")[0]
    program = textwrap.dedent(printed)

    subprocess.run(
        [sys.executable, "-c", program],
        cwd=demo.folder,
        env={"PATH": os.environ["PATH"], "SSL_CERT_FILE": str(demo.authority)},
        check=True,
        timeout=120,
    )

    with wave.open(str(demo.folder / "hello.wav")) as file:
        audio, rate = file.readframes(file.getnframes()), file.getframerate()
    heard = Recogniser.shared().heard(pcm(audio), rate)
    assert word_error_rate([("Hello from your own gateway.", heard)]) <= 0.05


@pytest.mark.usefixtures("counted")
def test_what_a_token_says_of_its_calls_is_reported_over_what_a_call_says(demo: RunningStack) -> None:
    asked = {"principal": "user:ada", "metadata": {"project": "ivr"}}
    minted = demo.control_plane.json("POST", "/api/v1/tokens", body=asked)
    body = {
        "model_id": "kokoro-82m",
        "transcript": "Whose call is this?",
        "voice": {"mode": "id", "id": "af_heart"},
        "output_format": {"container": "wav", "encoding": "pcm_s16le", "sample_rate": 24000},
    }
    told = {"X-API-Key": minted["token"], "X-Glottis-Metadata": '{"project": "another", "call": "17"}'}
    trusted = ssl.create_default_context(cafile=demo.authority)
    answer = httpx.post(f"{demo.base_url}/tts/bytes", json=body, headers=told, verify=trusted, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text

    async def is_reported() -> bool:
        rows = demo.usage(("by", "metadata.project,metadata.call"), ("metadata.call", "17"))
        found = [(row["metadata.project"], row["metadata.call"], row["units"].get("characters")) for row in rows]
        return found == [("ivr", "17", 19)]

    asyncio.run(until(is_reported, "the call to be reported as that of its token's project", 30))


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("mode", ["bidi", "batch"])
def test_the_agent_speaks_through_the_gateway_of_the_stack_without_being_told_where_it_is(demo: RunningStack, mode: str) -> None:
    arguments = ("-P", "-m", "glottis", "demo", "--data-dir", str(demo.data), "agent", "--mode", mode, "--events")
    said = subprocess.run(
        [sys.executable, *arguments],
        cwd=demo.folder,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    ).stdout

    events = [json.loads(line.removeprefix("data: ")) for line in said.splitlines() if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    words = [event for event in events if event["type"] == "text_delta"]
    last_word = max(index for index, kind in enumerate(kinds) if kind == "text_delta")
    assert (kinds[0], kinds[-1]) == ("agent_start", "agent_end")
    assert "error" not in kinds
    assert [event["seq"] for event in words] == list(range(len(words)))
    assert (kinds.index("audio_stream_start") > last_word) is (mode == "batch")
    audio = b"".join(base64.b64decode(event["data"]) for event in events if event["type"] == "audio_chunk")
    text = "".join(event["text"] for event in words)
    assert word_error_rate([(text, Recogniser.shared().heard(pcm(audio), 24_000))]) <= 0.05


def test_nothing_secret_is_in_the_logs(demo: RunningStack) -> None:
    secrets = [demo.token, demo.control_plane.token.reveal().decode()]
    secrets += [line for file in (demo.data / "keys").iterdir() for line in file.read_text().split() if file.suffix != ".pub"]
    texts = [first_voice.BYTES, first_voice.SSE, first_voice.WHOLE, *first_voice.PIECES]

    logs = {file.name: file.read_text() for file in (demo.data / "logs").iterdir()}
    logs["what a file or a journal keeps of its output"] = demo.output

    assert logs
    assert [(name, word[:6]) for name, log in logs.items() for word in [*secrets, *texts] if word.strip() in log] == []
