"""A batch of events becomes one message a subject, and more where it is large."""

from contracts.events import encoded_events
from gateway.telemetry.batches import messages_of
from gateway.telemetry.ring import Record
from gateway.telemetry.spool import Kind, Waiting


def waiting(position: int, kind: Kind, workspace: str, encoded: bytes) -> Waiting:
    return Waiting(Record(position, position + 1, kind, bytes([len(workspace)]) + workspace.encode() + encoded))


def test_workspaces_and_kinds_have_messages_of_their_own() -> None:
    usage, spans = b"\x01", b"\x02"
    batch = [
        waiting(32, Kind.USAGE, "w1", usage),
        waiting(64, Kind.SPANS, "w1", spans),
        waiting(96, Kind.WHOLE, "w1", usage),
        waiting(128, Kind.USAGE, "w2", usage),
    ]

    messages = messages_of("pod-1", batch)

    assert [(message.subject.rpartition(".")[2], message.id, message.events) for message in messages] == [
        ("w1", "pod-1:32:2", 2),
        ("w1", "pod-1:64:1", 1),
        ("w2", "pod-1:128:1", 1),
    ]
    assert [bytes(event) for event in encoded_events(messages[0].payload)] == [usage, usage]


def test_a_large_batch_is_cut_after_the_event_that_fills_a_message() -> None:
    large = b"\xc5\xff\xff" + bytes(65535)
    batch = [waiting(number, Kind.USAGE, "w1", large) for number in range(6)]

    messages = messages_of("pod-1", batch)

    assert [(message.id, message.events) for message in messages] == [("pod-1:0:4", 4), ("pod-1:4:2", 2)]
