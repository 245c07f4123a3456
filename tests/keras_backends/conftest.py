"""Jobs, as the tests of jobs start them."""

from tests.job.conftest import iris, start  # noqa: F401  # fixtures
