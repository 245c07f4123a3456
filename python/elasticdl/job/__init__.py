"""Jobs from end to end: submitting, launching, showing, and the processes' entry points.

The package can be called: `elasticdl.job(name)` finds a job, and has the name of this package.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # as type checkers know it, without the import of typing
if TYPE_CHECKING:
    from elasticdl.job.handle import Job


class _Finder(ModuleType):
    """This package, which `import` binds to the name `elasticdl.job` whenever one of its modules is imported first."""

    def __call__(self, name: str, namespace: str = "") -> Job:
        """Find a job by its name, as `elasticdl.job.handle.find`."""
        from elasticdl.job.handle import find

        return find(name, namespace)


sys.modules[__name__].__class__ = _Finder
