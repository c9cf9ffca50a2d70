"""WebSocket framing (RFC 6455 §5) seen from the middle: whose byte is this, where does a message end, what does it say.

Nothing here copies, changes or waits: bytes come in as the socket gave them, in any fragmentation, and the answers are
offsets into them. `Walker` follows one direction by its frame headers alone; `Tap` also shows the messages that go by;
`Gate` holds the frames of a message until its last one, so that it can be judged whole. Knows no provider, no policy, no
socket. Read next: `policy.session`, which decides what happens at each message.
"""

from typing import Final, Literal, TypeAlias

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

Sender: TypeAlias = Literal["client", "server"]

PROTOCOL_ERROR: Final = 1002
MESSAGE_TOO_BIG: Final = 1009

_MOST_FRAMES_HELD: Final = 16 * 1024
"""of a message that is held until it is whole: a frame may be empty, and is no less to keep for that"""

_NO_STATUS: Final = 1005
"""stands for "a close frame without a code"; never on the wire (RFC 6455 §7.4.1)"""


class FramingFault(Exception):
    """The sender broke the framing, or sent more than the limit. `code` is the close code that says so."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code
        self.sentence = sentence


class Close:
    """A close frame as read: `code` is 1005 if it carried none; `reason` is undecoded UTF-8, at most 123 bytes."""

    __slots__ = ("code", "reason")

    def __init__(self, code: int, reason: bytes) -> None:
        self.code = code
        self.reason = reason


Piece: TypeAlias = tuple[int, int, int, int, bool, bool, bytes]
"""(begin, payload_at, end, opcode, ends_frame, is_final, mask): a frame, or as much of one as a read holds. A continuation
has the opcode of its message."""

Message: TypeAlias = tuple[int, bytes, bytes]
"""(opcode, raw, payload): frames exactly as they came, and what they say, unmasked"""

Passed: TypeAlias = tuple[int, bytes | None]
"""(opcode, payload) of a data message that ended in a read; payload is None if it was too long to be read"""

_MAY_BE_SENT: Final = frozenset({1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014})


def is_sendable(code: int) -> bool:
    """Tell whether a close frame may carry the code (RFC 6455 §7.4: 1004, 1005, 1006 and 1015 never travel)."""
    return code in _MAY_BE_SENT or 3000 <= code <= 4999


def unmasked(payload: bytes, mask: bytes) -> bytes:
    """Return the payload as the client meant it (RFC 6455 §5.3). mask: 4 bytes, or empty for a frame without one."""
    size = len(payload)
    if not mask:
        return payload
    # Two big integers XORed at once: about a microsecond for a usual message, where a loop over bytes takes fifty.
    key = mask * ((size + 3) >> 2)
    value = int.from_bytes(payload, "little") ^ int.from_bytes(key[:size], "little")
    return value.to_bytes(size, "little")


def frame(opcode: int, payload: bytes, mask: bytes = b"") -> bytes:
    """Return one whole frame of our own. mask: 4 random bytes where we are the client, empty where we are the server."""
    size = len(payload)
    masked_bit = 0x80 if mask else 0
    if size < 126:
        head = bytes((0x80 | opcode, masked_bit | size))
    elif size < 65536:
        head = bytes((0x80 | opcode, masked_bit | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x80 | opcode, masked_bit | 127)) + size.to_bytes(8, "big")
    return head + mask + unmasked(payload, mask)


def close_frame(code: int, reason: str, mask: bytes = b"") -> bytes:
    """Return a close frame; the reason is cut to the 123 bytes that fit, between characters."""
    text = reason.encode()[:123].decode(errors="ignore").encode()
    return frame(CLOSE, code.to_bytes(2, "big") + text, mask)


def close_of(payload: bytes) -> Close:
    """Read a close frame's payload. Raises FramingFault for one byte, or for a code that must not travel."""
    if not payload:
        return Close(_NO_STATUS, b"")
    if len(payload) == 1:
        raise FramingFault(PROTOCOL_ERROR, "a close frame holds one byte, which is no code")
    code = payload[0] << 8 | payload[1]
    if not is_sendable(code):
        raise FramingFault(PROTOCOL_ERROR, f"close code {code} must not be sent")
    return Close(code, payload[2:])


class _Parser:
    """The state of one direction between two reads, and the one place where frame headers are understood.

    `fault` is set once the sender broke RFC 6455 §5; `close` once a close frame has ended. Nothing behind either is looked
    at, and `cut` is how much of the last read stood before it (the close frame included).
    """

    __slots__ = (
        "_is_final",
        "_left",
        "_limit",
        "_mask",
        "_mask_bit",
        "_message_bytes",
        "_message_opcode",
        "_opcode",
        "_tail",
        "_whole",
        "close",
        "cut",
        "fault",
        "is_over",
    )

    def __init__(self, sender: Sender, message_limit: int) -> None:
        """message_limit: bytes of payload that one message may have over all its frames."""
        self._mask_bit = 0x80 if sender == "client" else 0
        self._limit = message_limit
        self._left = 0  # payload bytes of the current frame that are still to come
        self._opcode = 0  # of the current frame; its message's, if it is a continuation
        self._is_final = True
        self._mask = b""
        self._message_opcode = 0  # of the fragmented message that is open; 0: none
        self._message_bytes = 0  # of that message so far, with what its current frame declares
        self._tail = b""  # the beginning of a header that a read cut
        self._whole = True  # nothing is open: the next byte begins a message
        self.fault: FramingFault | None = None
        self.close: Close | None = None
        self.is_over = False  # either is set: nothing that follows is looked at
        self.cut = 0

    @property
    def is_between_messages(self) -> bool:
        """The next byte begins a message: a frame of our own may be put here."""
        return self._whole

    def _pieces(self, data: bytes, pos: int) -> list[Piece]:
        """Cut what begins at pos into frames and parts of frames. A header that is not whole becomes the tail."""
        size = len(data)
        found: list[Piece] = []
        if self._left and pos < size:
            end = min(pos + self._left, size)
            self._left -= end - pos
            found.append((pos, pos, end, self._opcode, not self._left, self._is_final, self._mask))
            pos = end
            if not self._left:
                self._frame_ended()
                if self._opcode == CLOSE:
                    size = pos
        while pos < size:
            begin = pos
            first = data[pos]
            second = data[pos + 1] if size - pos > 1 else self._mask_bit
            if sentence := self._broken(first, second):
                self._broke(FramingFault(PROTOCOL_ERROR, sentence))
                break
            length = second & 0x7F
            payload_at = pos + 2 + (self._mask_bit >> 5)
            if length > 125:
                payload_at += 2 if length == 126 else 8
            if payload_at > size or size - pos < 2:
                self._tail = data[pos:]
                self._whole = False
                return found
            if length == 126:
                length = data[pos + 2] << 8 | data[pos + 3]
            elif length == 127:
                length = int.from_bytes(data[pos + 2 : pos + 10], "big")
            opcode = first & 0x0F
            if opcode < 8:
                if self._message_bytes + length > self._limit:
                    self._broke(FramingFault(MESSAGE_TOO_BIG, f"a message is larger than {self._limit} bytes"))
                    break
                self._message_bytes += length
                opcode = self._message_opcode = opcode or self._message_opcode
            self._opcode = opcode
            self._is_final = first >= 0x80
            self._mask = data[payload_at - 4 : payload_at] if self._mask_bit else b""
            end = payload_at + length
            self._whole = False
            if end > size:
                self._left = end - size
                found.append((begin, payload_at, size, opcode, False, self._is_final, self._mask))
                pos = size
            else:
                found.append((begin, payload_at, end, opcode, True, self._is_final, self._mask))
                self._frame_ended()
                pos = end
                if opcode == CLOSE:  # nothing behind it is anybody's (RFC 6455 §5.5.1)
                    break
        self._tail = b""
        self.cut = pos
        return found

    def _broken(self, first: int, second: int) -> str:
        """Say what is wrong with a header's first two bytes; empty if nothing."""
        if first & 0x70:
            return "a frame has reserved bits set, and no extension was agreed on"
        if second & 0x80 != self._mask_bit:
            return "a client's frame is not masked" if self._mask_bit else "a server's frame is masked"
        opcode = first & 0x0F
        if opcode == CONTINUATION:
            return "" if self._message_opcode else "a continuation frame came where no message was open"
        if opcode <= BINARY:
            return "a message began before the one before it had ended" if self._message_opcode else ""
        if not CLOSE <= opcode <= PONG:
            return f"opcode {opcode} is reserved"
        if first < 0x80 or second & 0x7F > 125:
            return "a control frame is fragmented or longer than 125 bytes"
        return ""

    def _frame_ended(self) -> None:
        if self._opcode < 8 and self._is_final:
            self._message_opcode = 0
            self._message_bytes = 0
        self._whole = not self._message_opcode

    def _closed(self, payload: bytes, begin: int, end: int) -> None:
        """Take note of a close frame between two offsets of the read; what stands behind it is nobody's.

        begin: negative where the frame began in an earlier read. A close frame that must not travel is cut off as well; if
        its beginning has passed, nothing of ours can follow it.
        """
        self.is_over = True
        try:
            self.close = close_of(payload)
            self.cut = end
        except FramingFault as fault:
            self.fault = fault
            self.cut = max(0, begin)
            self._whole = begin >= 0 and not self._message_opcode

    def _broke(self, fault: FramingFault) -> None:
        self.fault = fault
        self.is_over = True


class Walker(_Parser):
    """One direction, followed by its headers alone: payload is counted, nothing is kept.

    `messages`, `binary_bytes` and `text_bytes` count data messages and their payload as it goes by. `boundary` is the
    first offset of the last read at which the stream stood between messages, -1 if it never did; it is kept up only while
    the stream does not stand there already.
    """

    __slots__ = ("_closing", "_extended", "_shortest", "binary_bytes", "boundary", "messages", "text_bytes")

    def __init__(self, sender: Sender, message_limit: int) -> None:
        super().__init__(sender, message_limit)
        self._shortest = 6 if sender == "client" else 2  # bytes of a header without an extended length
        self._extended = self._shortest + 2
        self._closing = b""
        self.messages = 0
        self.binary_bytes = 0
        self.text_bytes = 0
        self.boundary = -1

    def walk(self, data: bytes) -> bool:
        """Follow one read. True: the stream ends in it: see `fault`, `close` and `cut`."""
        # Nearly every read of a live session is exactly one whole data frame: no loop, no slice, no allocation.
        size = len(data)
        if self._whole and size > 6:
            first = data[0]
            if first == 0x82 or first == 0x81:
                length = data[1] - self._mask_bit
                if length < 126:
                    end = length + self._shortest
                elif length == 126:
                    length = data[2] << 8 | data[3]
                    end = length + self._extended
                else:
                    end = 0
                if end == size and length <= self._limit:
                    self.messages += 1
                    if first == 0x82:
                        self.binary_bytes += length
                    else:
                        self.text_bytes += length
                    return False
        return self._walk(data)

    def _walk(self, data: bytes) -> bool:
        shift = len(self._tail)
        if shift:
            data = self._tail + data
        self.boundary = 0 if self._whole else -1
        for begin, payload_at, end, opcode, ends_frame, is_final, mask in self._pieces(data, 0):
            if opcode < 8:
                if opcode == BINARY:
                    self.binary_bytes += end - payload_at
                else:
                    self.text_bytes += end - payload_at
                if ends_frame and is_final:
                    self.messages += 1
                    if self.boundary < 0:
                        self.boundary = end - shift
            elif opcode == CLOSE:
                self._closing += data[payload_at:end]
                if ends_frame:
                    self._closed(unmasked(self._closing, mask), begin if shift <= begin < payload_at else -1, end)
                    break
        if not self.is_over:
            return False
        self.cut = max(0, self.cut - shift)
        return True


class Tap(Walker):
    """A server's direction whose text is read as it goes by. Nothing is held: `feed` only shows what the read completed.

    A message of more than `reading_limit` bytes goes by unread.
    """

    __slots__ = ("_kept", "_kept_bytes", "_quick_limit", "_reading_limit", "opcode", "payload_at")

    def __init__(self, message_limit: int, reading_limit: int) -> None:
        super().__init__("server", message_limit)
        self.opcode = TEXT  # of the message that `step` followed last, and where its payload began
        self.payload_at = 0
        self._reading_limit = reading_limit
        self._quick_limit = min(message_limit, reading_limit)
        self._kept: list[bytes] = []
        self._kept_bytes = 0

    def feed(self, data: bytes) -> list[Passed]:
        """Follow one read; return the data messages that end in it. After it, see `fault`, `close` and `cut`."""
        size = len(data)
        pos = 0
        found: list[Passed] = []
        while pos < size:
            end = self.step(data, pos)
            if not end:
                return found + self.read_on(data, pos)
            found.append((self.opcode, data[self.payload_at : end]))
            pos = end
        return found

    def step(self, data: bytes, pos: int) -> int:
        """Follow one data message of one frame that begins and ends in this read: nearly all do.

        Return where it ends, its payload begins at `payload_at`; 0 if what begins at pos is something else: see `read_on`.
        """
        size = len(data)
        if not self._whole or size - pos < 4:
            return 0
        first = data[pos]
        if first != 0x81 and first != 0x82:
            return 0
        length = data[pos + 1]
        payload_at = pos + 2
        if length > 125:
            if length != 126:
                return 0
            length = data[pos + 2] << 8 | data[pos + 3]
            payload_at += 2
        end = payload_at + length
        if end > size or length > self._quick_limit:
            return 0
        self.messages += 1
        if first == 0x81:
            self.opcode = TEXT
            self.text_bytes += length
        else:
            self.opcode = BINARY
            self.binary_bytes += length
        self.payload_at = payload_at
        return end

    def read_on(self, data: bytes, pos: int) -> list[Passed]:
        """Follow the rest of a read, whatever it is; return as `feed` does."""
        found: list[Passed] = []
        shift = len(self._tail)
        if shift:
            data = self._tail + data
        self.boundary = pos if self._whole else -1
        for begin, payload_at, end, opcode, ends_frame, is_final, mask in self._pieces(data, pos):
            if opcode < 8:
                self._keep(data[payload_at:end])
                if opcode == BINARY:
                    self.binary_bytes += end - payload_at
                else:
                    self.text_bytes += end - payload_at
                if ends_frame and is_final:
                    self.messages += 1
                    if self.boundary < 0:
                        self.boundary = end - shift
                    found.append((opcode, b"".join(self._kept) if self._kept_bytes <= self._reading_limit else None))
                    self._kept.clear()
                    self._kept_bytes = 0
            elif opcode == CLOSE:
                self._closing += data[payload_at:end]
                if ends_frame:
                    self._closed(unmasked(self._closing, mask), begin if shift <= begin < payload_at else -1, end)
                    break
        if self.is_over:
            self.cut = max(0, self.cut - shift)
        return found

    def _keep(self, payload: bytes) -> None:
        self._kept_bytes += len(payload)
        if self._kept_bytes <= self._reading_limit:
            if payload:  # endless empty frames would be kept for ever
                self._kept.append(payload)
        else:
            self._kept.clear()


class Gate(_Parser):
    """A client's direction that is judged by message: frames of a message are held until its last one has come.

    `feed` gives whole messages and whole control frames, as they came and unmasked; what is incomplete stays here, at most
    `message_limit` bytes of payload and its headers.
    """

    __slots__ = ("_frame", "_payloads", "_raws")

    def __init__(self, message_limit: int) -> None:
        super().__init__("client", message_limit)
        self._frame: list[bytes] = []  # pieces of the frame that has not ended
        self._raws: list[bytes] = []  # whole frames of the message that has not ended
        self._payloads: list[bytes] = []  # their payloads, unmasked

    @property
    def held_bytes(self) -> int:
        """How much is held for a message, or frame, that is not whole."""
        return len(self._tail) + sum(map(len, self._frame)) + sum(map(len, self._raws))

    def feed(self, data: bytes) -> list[Message]:
        """Take one read; return what it completed, in order. After it, see `fault` and `close` (the close is returned too)."""
        at = self.payload_at(data)
        if at:
            return [(data[0] & 0x0F, data, unmasked(data[at:], data[at - 4 : at]))]
        return self._feed(data)

    def payload_at(self, data: bytes) -> int:
        """Return where the payload begins if the read is just one message of one frame, as nearly all are; 0 if it is not.

        Such a read needs no `feed`. The mask is the four bytes before the payload.
        """
        size = len(data)
        if self._whole and size > 6:
            first = data[0]
            if first == 0x81 or first == 0x82:
                length = data[1] - 0x80
                at = 6
                if length == 126:
                    length = data[2] << 8 | data[3]
                    at = 8
                elif length < 0 or length == 127:
                    return 0
                if at + length == size and length <= self._limit:
                    return at
        return 0

    def _feed(self, data: bytes) -> list[Message]:
        if self._tail:
            data = self._tail + data
        found: list[Message] = []
        for begin, payload_at, end, opcode, ends_frame, is_final, mask in self._pieces(data, 0):
            if not ends_frame:
                self._frame.append(data[begin:payload_at])
                self._frame.append(data[payload_at:end])
                continue
            if begin == payload_at and self._frame:  # the end of a frame that began in an earlier read
                header = self._frame[0]
                payload = unmasked(b"".join(self._frame[1:]) + data[begin:end], mask)
                raw = header + b"".join(self._frame[1:]) + data[begin:end]
                self._frame.clear()
            else:
                payload = unmasked(data[payload_at:end], mask)
                raw = data[begin:end]
            if opcode >= 8:
                found.append((opcode, raw, payload))
                if opcode == CLOSE:
                    self._closed(payload, begin, end)
                    break
            else:
                self._raws.append(raw)
                self._payloads.append(payload)
                if len(self._raws) > _MOST_FRAMES_HELD:
                    self._broke(FramingFault(MESSAGE_TOO_BIG, f"a message has more than {_MOST_FRAMES_HELD} frames"))
                    break
                if is_final:
                    found.append((opcode, b"".join(self._raws), b"".join(self._payloads)))
                    self._raws.clear()
                    self._payloads.clear()
        return found
