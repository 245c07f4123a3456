"""What tests of several files need: a server of MariaDB, started once in a process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .mariadb import PASSWORD, Server, serving


@pytest.fixture(scope="session")
def running_mariadb() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.fixture
def mariadb(running_mariadb: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server with an empty database `test`, and the password where programs look for it."""
    monkeypatch.setenv("MYSQL_PWD", PASSWORD)
    running_mariadb.ask("DROP DATABASE IF EXISTS test")
    running_mariadb.ask("CREATE DATABASE test CHARACTER SET utf8mb4")
    return running_mariadb
