"""Fixtures for every test. Each comes from a module of tests/kit, where it is explained."""

from hypothesis import HealthCheck, settings

# Examples that take long say that the machine is busy, not that something is wrong.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

pytest_plugins = ["tests.kit.services", "tests.kit.control_plane"]
