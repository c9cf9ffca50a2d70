"""How much is tried, and with which chance: `make test` the same few faults each time, `make fault` every one and new ones.

What is drawn by chance is drawn from SEED, which a failed run tells; GLOTTIS_FAULTS_SEED=<that number> draws the same again.
"""

from __future__ import annotations

import os
import random

IS_WHOLE_MATRIX = os.environ.get("GLOTTIS_FAULTS") == "all"
_DRAWN = random.SystemRandom().randrange(1 << 32) if IS_WHOLE_MATRIX else 27
SEED = int(os.environ.get("GLOTTIS_FAULTS_SEED", _DRAWN))
