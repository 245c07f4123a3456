"""Generate the control plane's stubs from `proto/` into `python/elasticdl/control/generated/`.

Not part of the package: `make setup` and `make wheel` run it with the pinned grpcio-tools, because generated code must not be
newer than the oldest protobuf that TensorFlow allows. The stubs are not committed; the wheel carries them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TARGET = HERE.parent / "python" / "elasticdl" / "control" / "generated"


def main() -> int:
    """Write `control_pb2.py`, its type stub and `control_pb2_grpc.py`; return the compiler's exit status."""
    try:
        from grpc_tools import protoc
    except ImportError:
        print("grpcio-tools is missing; `make setup` installs the pinned version", file=sys.stderr)
        return 1
    folder = HERE / "elasticdl" / "v1"
    status = int(
        protoc.main(
            [
                "protoc",
                f"--proto_path={folder}",
                f"--python_out={TARGET}",
                f"--pyi_out={TARGET}",
                f"--grpc_python_out={TARGET}",
                str(folder / "control.proto"),
            ]
        )
    )
    if status == 0:
        stubs = TARGET / "control_pb2_grpc.py"
        # protoc writes absolute imports of the proto's folder; the package needs its own.
        text = re.sub(
            r"^import control_pb2",
            "from elasticdl.control.generated import control_pb2",
            stubs.read_text(),
            flags=re.M,
        )
        stubs.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
