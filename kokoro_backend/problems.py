"""What went wrong, as a caller may know it: exceptions of the speaking side become problems of `errors`."""

import structlog

from kokoro_backend.engine import EngineError
from kokoro_backend.errors import INTERNAL, QUEUE_SATURATED, SYNTHESIS_FAILED, Problem, ProblemError
from kokoro_backend.phonemes import UnsupportedLanguage
from kokoro_backend.scheduler import QueueFull
from kokoro_backend.text import UnsupportedScript

log = structlog.get_logger()


def problem_of(error: Exception) -> Problem:
    """Return the problem to answer with. What was not foreseen is logged with its trace and answered as internal."""
    match error:
        case ProblemError():
            return error.problem
        case UnsupportedScript():
            return Problem(
                400, "script_not_supported", "Unsupported script",
                f"The transcript has {error.script} letters, which this voice cannot read. Write it in Latin letters.",
            )  # fmt: skip
        case UnsupportedLanguage():
            return Problem(
                400, "language_not_supported", "Unsupported language", 'This language cannot be pronounced here yet: "en" can.'
            )
        case QueueFull():
            return QUEUE_SATURATED
        case EngineError():
            return SYNTHESIS_FAILED
        case _:
            log.error("request failed", exc_info=error)
            return INTERNAL
