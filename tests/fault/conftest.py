"""Says in a run's first lines what its faults are drawn from."""

from tests.fault.scope import SEED


def pytest_report_header() -> str:
    return f"faults are drawn from GLOTTIS_FAULTS_SEED={SEED}"
