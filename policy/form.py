"""The judged fields of a multipart form, read as it streams by, in bounded memory.

Forms are where parsers differ most, so this one takes only what all of them read alike: exact CRLF line ends, no preamble,
plain names, one boundary. Anything else that touches a judged field is refused; files pass without being looked at or kept.
Grammar: RFC 7578, RFC 2046 §5.1.1. Read next: `policy.decide`.
"""

import re
from enum import Enum, auto
from urllib.parse import unquote

from policy.audio import AudioGauge
from policy.facts import Facts, Unjudgeable
from policy.peek import characters_of
from policy.providers.profile import Endpoint

FIELD_LIMIT = 512
"""bytes of a model or voice field"""
TEXT_LIMIT = 1 << 20
"""bytes of a text field: what a judged JSON body may hold as well"""
PART_HEAD_LIMIT = 4096
PARTS_LIMIT = 1000
_EPILOGUE_LIMIT = 64
_NOTED_LIMIT = 64
"""bytes of a field that says what the answer's audio is to be"""
_OUTPUT_PARTS = ("container", "encoding", "sample_rate", "bit_rate")

MALFORMED = Unjudgeable("form_malformed")
FIELD_TWICE = Unjudgeable("form_field_twice")
FIELD_TOO_LARGE = Unjudgeable("form_field_too_large")
NO_FORM = Unjudgeable("content_type_unsupported")

_BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=?]{1,70}\Z")  # RFC 2046 §5.1.1, without the space
_PARAMETERS = re.compile(rb"""(?:[ \t]*;[ \t]*[!#$&+\-.^_`|~*0-9A-Za-z]+=(?:"[^"\r\n]*"|[^"; \t\r\n]+))*[ \t]*;?[ \t]*\Z""")
_PARAMETER = re.compile(rb""";[ \t]*([!#$&+\-.^_`|~*0-9A-Za-z]+)=(?:"([^"\r\n]*)"|([^"; \t\r\n]+))""")
_HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*([^\r\n\0]*)\Z")


class _State(Enum):
    """What is read next."""

    DELIMITER = auto()
    AFTER_DELIMITER = auto()
    PART_HEAD = auto()
    FIELD = auto()
    FILE = auto()
    END = auto()


def form_boundary(content_type: bytes | None) -> bytes | None:
    """Return the boundary that a Content-Type names; None unless it is multipart/form-data with exactly one."""
    kind, separator, rest = (content_type or b"").partition(b";")
    if kind.strip().lower() != b"multipart/form-data":
        return None
    parameters = _parameters_of(separator + rest)
    if parameters is None:
        return None
    boundaries = [value for name, value in parameters if name == b"boundary"]
    if len(boundaries) != 1 or _BOUNDARY.match(boundaries[0]) is None:
        return None
    return boundaries[0]


def _parameters_of(text: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the parameters behind a header's first value, names in lower case; None if they can be read in two ways."""
    if _PARAMETERS.match(text) is None or b'\\"' in text:
        return None
    return [(found[1].lower(), found[2] if found[2] is not None else found[3]) for found in _PARAMETER.finditer(text)]


class FormReader:
    """Reads the judged fields of one form.

    Feed it every byte of the body in order, before the same bytes are sent on. It answers `Facts` once: as soon as every
    judged field was seen, at the latest with the form's closing boundary. `Unjudgeable` may come at any time, also after
    the facts (a judged field that stands there twice): then nothing more may be sent. A body that ends while `is_complete`
    is false is `form_malformed`.
    """

    __slots__ = (
        "_answer",
        "_carry",
        "_delimiter",
        "_endpoint",
        "_field",
        "_fields",
        "_gauge",
        "_gauged",
        "_is_told",
        "_names_other_voice",
        "_noted",
        "_output",
        "_parts",
        "_state",
        "_wanted",
    )

    def __init__(self, content_type: bytes | None, endpoint: Endpoint, audio_rate: int = 0) -> None:
        """audio_rate: bytes a second of the file to be measured, where that is raw; 0: unknown."""
        boundary = form_boundary(content_type)
        self._answer: Unjudgeable | None = NO_FORM if boundary is None else None
        self._delimiter = b"\r\n--" + (boundary or b"")
        self._endpoint = endpoint
        self._wanted = {key: FIELD_LIMIT for key in (endpoint.model_key, endpoint.voice_key) if key is not None}
        if endpoint.text_key is not None:
            self._wanted[endpoint.text_key] = TEXT_LIMIT
        self._fields: dict[str, str] = {}
        self._names_other_voice = False
        self._state = _State.DELIMITER
        # The line break before a delimiter belongs to it, but the body opens without one.
        self._carry = b"\r\n"
        self._field = ""
        self._parts = 0
        self._is_told = False
        self._gauge = AudioGauge(audio_rate)
        """measures the file whose length is billed, as it passes"""
        self._gauged = False
        stem = endpoint.output_key
        self._output = {} if stem is None else {f"{stem}[{part}]": b"" for part in _OUTPUT_PARTS}
        self._noted = ""

    @property
    def output(self) -> dict[str, str | int | None]:
        """What the answer's audio is to be, as the form said so far, in the shape of a JSON body's `output_format`."""
        said: dict[str, str | int | None] = {}
        for name, value in self._output.items():
            text = value.decode("latin-1")
            said[name.partition("[")[2][:-1]] = int(text) if text.isascii() and text.isdecimal() else text or None
        return said

    @property
    def is_complete(self) -> bool:
        """Whether the form's closing boundary was read."""
        return self._state is _State.END and self._answer is None

    @property
    def file_ms(self) -> int | None:
        """How long the file is whose length is billed; None if that is not known, or not all of it was read."""
        return self._gauge.milliseconds() if self.is_complete and self._gauge.size else None

    def feed(self, data: bytes) -> Facts | Unjudgeable | None:
        """Return what became known with these bytes; None if nothing did."""
        if self._answer is not None:
            return self._answer
        self._carry += data
        while self._step():
            pass
        return self._news()

    def _news(self) -> Facts | Unjudgeable | None:
        if self._answer is not None:
            return self._answer
        if not self._is_told and (self._state is _State.END or len(self._fields) == len(self._wanted)):
            self._is_told = True
            return self._facts()
        return None

    def _step(self) -> bool:
        """Read on by one token; False if more bytes are needed. Sets the answer where the form cannot be judged."""
        carry, state = self._carry, self._state
        if self._answer is not None:
            return False
        if state is _State.FILE:
            at = carry.find(self._delimiter)
            if at < 0:
                self._pass(carry, max(0, len(carry) - len(self._delimiter) + 1))
                self._carry = carry[-(len(self._delimiter) - 1) :]
                return False
            self._pass(carry, at)
            self._after_delimiter(at)
        elif state is _State.FIELD:
            at = carry.find(self._delimiter)
            limit = self._wanted[self._field]
            if at > limit or (at < 0 and len(carry) > limit + len(self._delimiter)):
                self._answer = FIELD_TOO_LARGE
                return False
            if at < 0:
                return False
            self._keep(carry[:at])
            self._after_delimiter(at)
        elif state is _State.PART_HEAD:
            at = carry.find(b"\r\n\r\n")
            is_empty = carry.startswith(b"\r\n")  # a part without a head has no name
            if is_empty or at > PART_HEAD_LIMIT or (at < 0 and len(carry) > PART_HEAD_LIMIT):
                self._answer = MALFORMED
                return False
            if at < 0:
                return False
            self._carry = carry[at + 4 :]
            self._open_part(carry[:at])
        elif state is _State.AFTER_DELIMITER:
            if len(carry) < 2:
                return False
            if carry.startswith(b"\r\n"):
                self._state = _State.PART_HEAD
            elif carry.startswith(b"--"):
                self._state = _State.END
            else:
                self._answer = MALFORMED
            self._carry = carry[2:]
        elif state is _State.DELIMITER:
            if len(carry) < len(self._delimiter):
                if not self._delimiter.startswith(carry):
                    self._answer = MALFORMED
                return False
            if not carry.startswith(self._delimiter):
                self._answer = MALFORMED
                return False
            self._after_delimiter(0)
        else:  # what follows the closing boundary means nothing, so nothing may stand there but a line's end
            if len(carry) > _EPILOGUE_LIMIT or carry.strip(b"\r\n"):
                self._answer = MALFORMED
            return False
        return True

    def _pass(self, carry: bytes, size: int) -> None:
        """Look at the first bytes of what is there of a part that is not judged, on their way."""
        if self._gauged:
            self._gauge.feed(memoryview(carry)[:size])
        elif self._noted:
            self._output[self._noted] = (self._output[self._noted] + carry[:size])[:_NOTED_LIMIT]

    def _after_delimiter(self, at: int) -> None:
        self._carry = self._carry[at + len(self._delimiter) :]
        self._state = _State.AFTER_DELIMITER
        self._parts += 1
        if self._parts > PARTS_LIMIT:
            self._answer = MALFORMED

    def _open_part(self, head: bytes) -> None:
        """Decide from a part's head whether it is a judged field."""
        dispositions = []
        is_encoded = False
        for line in head.split(b"\r\n"):
            header = _HEADER.match(line)
            if header is None:
                self._answer = MALFORMED
                return
            name = header[1].lower()
            if name == b"content-disposition":
                dispositions.append(header[2])
            is_encoded = is_encoded or name == b"content-transfer-encoding"
        kind, separator, rest = dispositions[0].partition(b";") if len(dispositions) == 1 else (b"", b"", b"")
        parameters = _parameters_of(separator + rest) if kind.strip().lower() == b"form-data" else None
        if parameters is None:
            self._answer = MALFORMED
            return
        names = [value for key, value in parameters if key == b"name"]
        if len(names) != 1 or any(key == b"name*" for key, _ in parameters):
            self._answer = MALFORMED
            return
        field = names[0].decode("latin-1")
        plain = unquote(field).strip().casefold()
        self._state = _State.FILE
        # A second file of that name could be the one that is read: then its length is not known either.
        self._gauged = field == self._endpoint.file_key
        if self._gauged and self._gauge.size:
            self._gauge = AudioGauge()
            self._gauged = False
        self._noted = field if field in self._output else ""
        if field in self._wanted:
            if field in self._fields:
                self._answer = FIELD_TWICE
            elif is_encoded or any(key.startswith(b"filename") for key, _ in parameters):
                self._answer = MALFORMED
            self._field = field
            self._state = _State.FIELD
        elif plain in {wanted.casefold() for wanted in self._wanted}:
            self._answer = MALFORMED
        elif self._endpoint.voice_key is not None and (plain == "voice" or plain.startswith(("voice[", "voice."))):
            # Another way to say what is spoken with: no allow-list contains it, and it must not come after the answer.
            self._names_other_voice = True
            if self._is_told:
                self._answer = FIELD_TWICE

    def _keep(self, value: bytes) -> None:
        try:
            self._fields[self._field] = value.decode("utf-8")
        except UnicodeDecodeError:
            self._answer = MALFORMED

    def _facts(self) -> Facts:
        endpoint = self._endpoint
        text = self._fields.get(endpoint.text_key or "", "")
        return Facts(
            model=self._fields.get(endpoint.model_key or "") or None,
            voice=self._fields.get(endpoint.voice_key or "") or None,
            is_voice_embedded=self._names_other_voice,
            characters=characters_of(text),
            speaks=not (text == "" or text.isspace()),
            transcript=text,
        )
