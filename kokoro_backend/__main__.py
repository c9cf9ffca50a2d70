"""The image's entry point: SageMaker runs it as `docker run IMAGE serve`; without an argument it does the same."""

import os
import sys

import structlog

from kokoro_backend.main import run
from kokoro_backend.settings import Settings, SettingsError


def main(arguments: list[str], environ: dict[str, str]) -> int:
    """Return the exit status: 2 for arguments or settings that cannot be used."""
    if arguments not in ([], ["serve"]):
        sys.stderr.write("usage: python -m kokoro_backend [serve]\n")
        return 2
    try:
        settings = Settings.from_env(environ)
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    # A container's output is read by a collector: one JSON object a line.
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    return run(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], dict(os.environ)))
