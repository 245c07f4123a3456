"""MXNet as a framework: what model files and programs import. Importing this package does not import MXNet."""

from elasticdl.worker.hooks import Callback

__all__ = ["Callback", "import_mxnet"]


def import_mxnet() -> None:
    """Let `import mxnet` work with the NumPy that it can be installed with; call it before that, in a program of your own.

    Raises ModuleNotFoundError if MXNet is not installed, BadSetting if it can't be imported here.
    """
    from elasticdl.mxnet import runtime

    runtime.import_mxnet()
