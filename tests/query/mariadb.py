"""A server of MariaDB, which is started here, for tests; Debian's package `mariadb-server` has its programs."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

PASSWORD = "a secret: it's / @ 5 %"
_INSTALL, _SERVER = "mariadb-install-db", "mariadbd"


class Server:
    """One server on a Unix socket, with a user `me` who needs a password, and no one else's data.

    Attributes:
        folder: all of it.
        url: of the database `test`, without the password.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"mysql://me@localhost/test?unix_socket={folder}/socket"

    def start(self) -> None:
        """Make its files, start it, and wait until it says that it is ready."""
        data = [f"--datadir={self.folder}/data", f"--user={getpass.getuser()}"]
        run(
            [
                _program(_INSTALL),
                "--no-defaults",
                *data,
                *_QUICK,
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            ]
        )
        notices = self.folder / "notices"
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as ready:
            ready.bind(str(notices))
            ready.settimeout(120)
            with (self.folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [_program(_SERVER), "--no-defaults", *data, *_QUICK, f"--socket={self.folder}/socket", "--skip-networking"],
                    env={**os.environ, "NOTIFY_SOCKET": str(notices)}, stdout=log, stderr=log,
                )  # fmt: skip
            while b"READY=1" not in ready.recv(4096):
                pass
        self.ask("CREATE USER me@localhost IDENTIFIED BY %s", PASSWORD)
        self.ask("GRANT ALL ON *.* TO me@localhost")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask as the server's administrator, in a connection of its own."""
        with closing(self.connect()) as database, database.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall())

    def connect(self) -> Any:
        return pymysql.connect(unix_socket=f"{self.folder}/socket", user="root", autocommit=True)


_QUICK = (
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-doublewrite=0",
    "--innodb-log-file-size=8M",
    "--innodb-buffer-pool-size=32M",
)


def run(line: list[str]) -> None:
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _program(name: str) -> str:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/bin") or name


@contextmanager
def serving() -> Iterator[Server]:
    """Start a server; skip the test where there is none, and fail it in CI."""
    if shutil.which(_program(_SERVER)) is None:
        why = "there is no MariaDB here: make setup-databases"
        pytest.fail(why) if os.environ.get("CI") == "true" else pytest.skip(why)
    # not in pytest's own directory, whose path may be too long for a socket
    with tempfile.TemporaryDirectory(prefix="elasticdl-") as folder:
        server = Server(Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop()
