"""The tags that Sonic's texts may carry: pauses become silence, spelled text is spelled, the rest is not read out.

`speech_parts` is applied to a sentence before anything else looks at it. Pure; see docs/kokoro.md for the table.
"""

import re
from dataclasses import dataclass

MAX_PAUSE_SECONDS = 10.0

_TAG = re.compile(
    r"<break\b(?P<break>[^<>]*)/?>|<spell>(?P<spelled>[^<>]*)</spell>"
    r"|</?(?:spell|speed|volume|emotion|pause|prosody|lang|sub|speak)\b[^<>]*>|\[(?:laughter|laughs|sigh|breath|cough)\]"
)
_TIME = re.compile(r"time\s*=\s*[\"']?\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)")


@dataclass(frozen=True)
class Pause:
    """Silence of `seconds`."""

    seconds: float


def speech_parts(sentence: str) -> list[str | Pause]:
    """Return what to speak and where to be silent; texts that are only white space are left out."""
    parts: list[str | Pause] = []
    text = ""
    position = 0
    for tag in _TAG.finditer(sentence):
        text += sentence[position : tag.start()]
        position = tag.end()
        if tag.group("spelled") is not None:
            text += f" {' '.join(char for char in tag.group('spelled') if not char.isspace())} "
        elif tag.group("break") is not None:
            parts += [text] if text.strip() else []
            text = ""
            if pause := _pause(tag.group("break")):
                parts.append(pause)
        else:
            text += " "
    text += sentence[position:]
    return [*parts, text] if text.strip() else parts


def _pause(attributes: str) -> Pause | None:
    time = _TIME.search(attributes)
    if time is None:
        return None
    seconds = float(time.group("number")) / (1000 if time.group("unit") == "ms" else 1)
    return Pause(min(seconds, MAX_PAUSE_SECONDS)) if seconds > 0 else None
