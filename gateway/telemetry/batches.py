"""Events gathered into messages as they come: one a subject, or more where they are large.

Pure, and apart from spool and publisher because each event passes here: its bytes are copied once, behind those of the one
before, and nothing is made for it. Knows nothing of what events mean. Read next: `gateway.telemetry.spool`, which fills it.
"""

from dataclasses import dataclass
from typing import Final

from contracts import subjects
from contracts.events import BATCH_HEAD_BYTES, batch_head

_BYTES_A_MESSAGE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One JetStream message. `id`: the same for the same events of the same spool file."""

    subject: str
    id: str
    payload: bytes | bytearray
    events: int


class _Gathered:
    """A message that is being filled. first: the position of its first event."""

    def __init__(self, subject: str, first: int) -> None:
        self.subject = subject
        self.first = first
        self.events = 0
        self.payload = bytearray(BATCH_HEAD_BYTES)


class Batch:
    """Events of one spool file that are published together. `end`: the position up to which this is all there is."""

    def __init__(self) -> None:
        self.end = 0
        self.events = 0
        self.size = 0
        self._last = 0
        self._is_in_order = True
        self._usage: dict[str, _Gathered] = {}
        self._spans: dict[str, _Gathered] = {}
        self._messages: list[_Gathered] = []

    def add(self, is_usage: bool, workspace: str, position: int, encoded: bytes) -> None:
        """Take in an event; position: where it is in the file."""
        if position < self._last:
            self._is_in_order = False
        self._last = position
        gathering = self._usage if is_usage else self._spans
        gathered = gathering.get(workspace)
        if gathered is None or len(gathered.payload) >= _BYTES_A_MESSAGE:
            subject = subjects.usage_subject(workspace) if is_usage else subjects.spans_subject(workspace)
            gathered = gathering[workspace] = _Gathered(subject, position)
            self._messages.append(gathered)
        gathered.payload += encoded
        gathered.events += 1
        self.events += 1
        self.size += len(encoded)

    def messages(self, file: str) -> list[Message]:
        """Return the messages that carry these events, which end the batch: nothing is added any more. file: its name.

        The file's name and the first position name a message's events, so that the stream knows a batch again that a
        successor cuts. It cuts in the file's order: a batch in another one has ids of its own, told apart by its end.
        """
        end = "" if self._is_in_order else f":{self.end}"
        for gathered in self._messages:
            gathered.payload[:BATCH_HEAD_BYTES] = batch_head(gathered.events)
        return [
            Message(gathered.subject, f"{file}:{gathered.first}:{gathered.events}{end}", gathered.payload, gathered.events)
            for gathered in self._messages
        ]
