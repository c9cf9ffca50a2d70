"""Every refusal and fault that a caller can meet: stable code, status, title, sentence.

The wire shapes (Cartesia's by version, SageMaker's) are made from these elsewhere; nothing here is an exception's text.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong, for the caller. `code` is stable; `message` says what happened and what to do."""

    status: int
    code: str
    title: str
    message: str


class ProblemError(Exception):
    """Ends a request with a problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


def bad_request(message: str, code: str = "invalid_request") -> ProblemError:
    """Return a 400 for a request that cannot be understood or served as it is."""
    return ProblemError(Problem(400, code, "Invalid request", message))


SYNTHESIS_FAILED = Problem(
    500,
    "synthesis_failed",
    "Synthesis failed",
    "The speech model failed on this text. Try again; if it persists, give the operator the request id.",
)
QUEUE_SATURATED = Problem(
    503, "queue_saturated", "Too busy", "More speech is waiting than this server takes. Try again in a moment."
)
NOT_READY = Problem(503, "not_ready", "Not ready", "The model is still loading. GET /ping answers 200 when it is ready.")
UNAUTHORIZED = Problem(
    401, "unauthorized", "Unauthorized", 'Show this server\'s caller key as "Authorization: Bearer KEY" or "X-API-Key: KEY".'
)
NOT_FOUND = Problem(404, "not_found", "Not found", "This server has no such path.")
INTERNAL = Problem(500, "internal_error", "Internal error", "Something failed here. Give the operator the request id.")
