"""What a provider's server-sent events say of their answer: how much audio came, and whether it failed inside a 200.

A look at bytes that are relayed anyway: a line is kept until it ends, and not at all beyond a limit. Lines end with CR LF,
LF or CR (WHATWG HTML, server-sent events). Knows the event shapes of Cartesia and of Kokoro's container. Read before:
`policy.audio`; next: `gateway.edge.metering`.
"""

from typing import Final

from policy.contexts import audio_bytes_of, audio_ms_of, is_end, reason_of, said_by

_MOST_LINE_BYTES: Final = 1024 * 1024


class EventReader:
    """Reads one answer of events.

    `audio_bytes`: what the audio in it decodes to. `has_failed`: it was told that the answer is an error.
    `said_audio_ms`: what the provider says itself of its length, None if it does not. `is_whole`: every event was read.
    """

    __slots__ = (
        "_data",
        "_event",
        "_is_fatal",
        "_rest",
        "_skips",
        "audio_bytes",
        "has_failed",
        "is_whole",
        "reason",
        "said_audio_ms",
    )

    def __init__(self) -> None:
        self._rest = b""
        self._skips = False
        self._event = b""
        self._data: list[bytes] = []
        self._is_fatal = False
        self.audio_bytes = 0
        self.has_failed = False
        self.reason = ""
        self.said_audio_ms: int | None = None
        self.is_whole = True

    def feed(self, piece: bytes) -> bool:
        """Take the next bytes; return whether audio came with them."""
        text = self._rest + piece if self._rest else piece
        if b"\r" in text:
            held = b""
            if text.endswith(b"\r"):  # the first half of CR LF, or a line's end of its own: the next byte tells
                text, held = text[:-1], b"\r"
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        before = self.audio_bytes
        *lines, self._rest = text.split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > _MOST_LINE_BYTES:
            self._rest = b""
            self._skips = True
            self.is_whole = False
        return self.audio_bytes > before

    def _line(self, line: bytes) -> None:
        if self._skips:
            self._skips = False
        elif not line:
            self._dispatch()
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
        elif line.startswith(b"event:"):
            self._event = line[6:].strip()

    def _dispatch(self) -> None:
        """An event is complete."""
        name, data = self._event, self._data
        self._event, self._data = b"", []
        said = said_by(data[0] if len(data) == 1 else b"\n".join(data)) if data else None
        if name == b"error" or (said is not None and said.type == "error"):
            self.has_failed = True
            self._is_fatal = self._is_fatal or said is None or said.done is not False
            self.reason = reason_of(said) if said is not None else "provider_error"
        elif said is not None:
            self.audio_bytes += audio_bytes_of(said)
            audio_ms = audio_ms_of(said)
            if audio_ms is not None:
                self.said_audio_ms = audio_ms
            if is_end(said) and not self._is_fatal:
                self.has_failed = False
