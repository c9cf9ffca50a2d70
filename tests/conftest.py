"""Fixtures for every test, each from a module of tests/kit, where it is explained; and what the suite draws by chance.

One state of the tree gives one result: the order of the tests and the examples of the property tests follow a fixed seed.
`make explore` draws both anew.
"""

import os

from hypothesis import HealthCheck, settings

# Examples that take long say that the machine is busy, not that something is wrong.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("explore" if os.environ.get("GLOTTIS_EXPLORE") else "suite")

pytest_plugins = ["tests.kit.services", "tests.kit.control_plane"]
