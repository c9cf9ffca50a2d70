"""Fixtures for every test. Each comes from a module of tests/kit, where it is explained."""

pytest_plugins = ["tests.kit.services", "tests.kit.control_plane"]
