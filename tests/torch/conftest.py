"""Jobs, as the tests of jobs start them."""

from tests.job.conftest import ids, iris, plain, start  # noqa: F401  # fixtures
