"""Jobs, as the tests of jobs start them."""

from tests.job.conftest import start  # noqa: F401  # a fixture
