"""The messages that carry a batch of events: one a subject, or more where they are large.

Pure, and apart from the publisher because each event passes here. Knows nothing of what events mean. Read next:
`gateway.telemetry.publisher`.
"""

from dataclasses import dataclass
from typing import Final

from contracts import subjects
from contracts.events import batch_of
from gateway.telemetry.spool import Kind, Waiting

_BYTES_A_MESSAGE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class Message:
    """One JetStream message. `id`: the same for the same events of the same spool file."""

    subject: str
    id: str
    payload: bytes
    events: int


def messages_of(file: str, batch: list[Waiting]) -> list[Message]:
    """Return the messages that carry these events. file: the name of the spool file that they are in.

    The file's name and the first position name a message's events: a cut made anew begins where this one does.
    """
    by_subject: dict[tuple[int, str], list[Waiting]] = {}
    for event in batch:
        key = (event.kind, event.workspace)
        known = by_subject.get(key)
        if known is None:
            by_subject[key] = [event]
        else:
            known.append(event)
    messages: list[Message] = []
    for (kind, workspace), events in by_subject.items():
        subject = subjects.usage_subject(workspace) if kind == Kind.USAGE else subjects.spans_subject(workspace)
        size, position = 0, events[0].position
        encoded: list[bytes] = []
        for event in events:
            if size >= _BYTES_A_MESSAGE:
                messages.append(Message(subject, f"{file}:{position}:{len(encoded)}", batch_of(encoded), len(encoded)))
                size, position, encoded = 0, event.position, []
            size += len(event.encoded)
            encoded.append(event.encoded)
        messages.append(Message(subject, f"{file}:{position}:{len(encoded)}", batch_of(encoded), len(encoded)))
    return messages
