"""The WebSocket sessions that are open, and which of them still owe an answer: asked before the process ends.

`server` waits for them when it drains; a session that owes nothing is closed at once. No I/O here.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Sessions:
    """All sessions of one process."""

    def __init__(self) -> None:
        self._owing: set[Callable[[], bool]] = set()

    @contextmanager
    def open(self, owes_answer: Callable[[], bool]) -> Iterator[None]:
        """Count a session while the block runs. owes_answer: says whether something that it took is not answered yet."""
        self._owing.add(owes_answer)
        try:
            yield
        finally:
            self._owing.discard(owes_answer)

    @property
    def owe_answers(self) -> bool:
        """Say whether any session still has something to say."""
        return any(owes_answer() for owes_answer in self._owing)
