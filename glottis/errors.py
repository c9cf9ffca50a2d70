"""What goes wrong on the operator's machine, in words that say what to do.

`SetupError` is the only exception that the command line shows without a trace: one sentence of what is wrong and one
of what to do about it, exit status 2. Everything else is a defect of ours and keeps its trace. Read `main.py` next.
"""

from __future__ import annotations


class SetupError(Exception):
    """Something outside Glottis is not as it needs to be: a port in use, a missing package, a full disk.

    what: the fact, one sentence, no secret in it. to_do: what the operator can do about it.
    """

    def __init__(self, what: str, to_do: str) -> None:
        super().__init__(f"{what} {to_do}")
        self.what = what
        self.to_do = to_do
