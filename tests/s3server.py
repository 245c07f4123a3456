"""A server of s3:// URLs for tests, a process of its own that can be killed: moto, with the files of a directory.

The first directories are buckets. moto keeps objects in memory, so a server that is started again reads the same files. It checks no keys:
this refuses those that begin with another name than the one it expects.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KEY = "ALLOWED"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class S3Server:
    """A server whose process can be killed and started again, with the same port.

    Attributes:
        port: on 127.0.0.1.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def environment(self) -> dict[str, str]:
        """Return what clients need to find it."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Start it, unless it runs, and wait until it listens."""
        if self._process is not None:
            return
        command = [sys.executable, "-m", "tests.s3server", str(self._root), str(self.port)]
        self._process = subprocess.Popen(
            command,
            text=True,
            cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def serving(root: Path) -> Iterator[S3Server]:
    server = S3Server(root)
    try:
        yield server
    finally:
        server.kill()


def main(root: Path, port: int) -> None:
    """Serve until the process is killed; the first line of the output is the port."""
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY="secret")
    os.environ.pop("AWS_ENDPOINT_URL", None)
    import boto3
    from moto import mock_aws
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    with mock_aws():  # what clients of this process write is what the server has
        client = boto3.client("s3", region_name="us-east-1")
        for bucket in root.iterdir():
            client.create_bucket(Bucket=bucket.name)
            for path in filter(Path.is_file, bucket.rglob("*")):
                name = str(path.relative_to(bucket))
                client.put_object(Bucket=bucket.name, Key=name, Body=path.read_bytes())
        moto = DomainDispatcherApplication(create_backend_app)

        def checked(environ: dict[str, Any], respond: Callable[..., Any]) -> Iterable[bytes]:
            if f"Credential={KEY}/" in environ.get("HTTP_AUTHORIZATION", ""):
                return moto(environ, respond)
            respond("403 Forbidden", [("Content-Type", "application/xml")])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [DENIED]

        server = make_server("127.0.0.1", port, checked, threaded=True)
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
