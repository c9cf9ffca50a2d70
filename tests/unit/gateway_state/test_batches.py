"""A batch of events becomes one message a subject, and more where it is large."""

from contracts.events import encoded_events
from gateway.telemetry.batches import Batch


def test_workspaces_and_kinds_have_messages_of_their_own() -> None:
    batch = Batch()
    batch.add(True, "w1", 32, b"\x01")
    batch.add(False, "w1", 64, b"\x02")
    batch.add(True, "w1", 96, b"\x03")
    batch.add(True, "w2", 128, b"\x04")

    messages = batch.messages("pod-1")

    assert [(message.subject, message.id, message.events) for message in messages] == [
        ("glottis.usage.w1", "pod-1:32:2", 2),
        ("glottis.spans.w1", "pod-1:64:1", 1),
        ("glottis.usage.w2", "pod-1:128:1", 1),
    ]
    assert [bytes(event) for event in encoded_events(bytes(messages[0].payload))] == [b"\x01", b"\x03"]


def test_a_large_batch_is_cut_after_the_event_that_fills_a_message() -> None:
    large = b"\xc5\xff\xff" + bytes(65535)
    batch = Batch()
    for number in range(6):
        batch.add(True, "w1", number, large)

    messages = batch.messages("pod-1")

    assert [(message.id, message.events) for message in messages] == [("pod-1:0:4", 4), ("pod-1:4:2", 2)]


def test_a_batch_in_another_order_than_the_files_has_ids_that_no_successor_gives() -> None:
    batch = Batch()
    for position in (32, 96, 64):
        batch.add(True, "w1", position, b"\x01")
    batch.end = 128

    assert [message.id for message in batch.messages("pod-1")] == ["pod-1:32:3:128"]
