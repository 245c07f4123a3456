"""Jobs, as the tests of jobs start them, and MXNet, which has an environment of its own."""

import pytest

from elasticdl.spec import framework
from tests.job.conftest import start  # noqa: F401  # a fixture

from . import need_mxnet


@pytest.fixture(autouse=True)
def started() -> None:
    need_mxnet()
    framework.find("mxnet").start(1)
