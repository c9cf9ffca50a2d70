"""The process `glottis gateway`: logging, event loop, the composed gateway, exit status. Read `gateway.app` next."""

import asyncio
import gc
import logging
import sys
from importlib.metadata import version

import structlog
import uvloop

from gateway.app import CannotStart, Gateway
from gateway.server import ListenFailed
from gateway.settings import Settings
from gateway.telemetry import logs
from gateway.telemetry.metrics import METRICS
from gateway.telemetry.ring import RingUnusable
from policy import session

_CANNOT_START_STATUS = 2

_log = structlog.get_logger("gateway.main")


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status: 0 after a drain, 2 if it cannot start."""
    log_format = settings.log_format or ("console" if sys.stderr.isatty() else "json")
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    writer = logs.configure(log_format, level, sys.stderr.buffer)
    METRICS.log_lines_dropped.set_function(lambda: writer.dropped)
    is_compiled = not (session.__file__ or "").endswith(".py")  # see deploy/dev/native.py
    _log.info("starting", pod=settings.pod, version=version("glottis"), is_compiled=is_compiled)
    # What was imported lives as long as the process: a collection need not walk over it.
    gc.collect()
    gc.freeze()
    # Exchanges leave no cycles: a collection looks at what is under way, and finds nothing. It need not look every 700 objects.
    gc.set_threshold(10_000)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(Gateway(settings, logs.line_logger(writer, log_format, level)).run())
    except (CannotStart, ListenFailed, RingUnusable) as fault:
        _log.error("cannot start", why=str(fault))
        return _CANNOT_START_STATUS
    finally:
        writer.close()
