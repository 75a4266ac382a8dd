"""What every test shares: the record of feature rows, and hypothesis without a stopwatch."""

import hypothesis
import pytest

from tests.features import OUTCOMES, PAGE, Recorder

pytest_plugins = [
    "tests.servers.azurite",
    "tests.servers.rclone",
    "tests.servers.seaweedfs",
    "tests.servers.testbench",
]

# A deadline per example measures the machine's other work, not ours; pytest-timeout bounds a test.
hypothesis.settings.register_profile("penstock", deadline=None)
hypothesis.settings.load_profile("penstock")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(PAGE, OUTCOMES), "feature-recorder")
