"""Logs of the processes that live in this package: one line an event, with fields, on stderr.

GLOTTIS_LOG_FORMAT: `console` or `json` (json when stderr is no terminal); GLOTTIS_LOG_LEVEL: debug, info, warning or
error. Never a secret, a token or a transcript.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

import structlog

from glottis.errors import SetupError

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logs(environ: Mapping[str, str]) -> None:
    """Set up structlog and the standard library's loggers. Raises SetupError for a value that is none of the above."""
    form = environ.get("GLOTTIS_LOG_FORMAT") or ("console" if sys.stderr.isatty() else "json")
    level = environ.get("GLOTTIS_LOG_LEVEL") or "info"
    if form not in ("console", "json"):
        raise SetupError(f"GLOTTIS_LOG_FORMAT is {form!r}.", "Set it to console or json.")
    if level not in _LEVELS:
        raise SetupError(f"GLOTTIS_LOG_LEVEL is {level!r}.", f"Set it to one of {', '.join(_LEVELS)}.")
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if form == "json" else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
