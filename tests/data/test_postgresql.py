"""Loads into tables of a real PostgreSQL server, which is started here; skipped where Debian's package `postgresql` is not installed."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data.writers.tableload import check
from elasticdl.errors import BadSetting, StorageAway
from elasticdl.spec.databases import OutputTable, table_of

from .test_tableload import RECORDS, Waiting, load, parts, predictions, vectors

dbapi = pytest.importorskip("adbc_driver_postgresql.dbapi")
PASSWORD = "a secret: it's / @ 5 %"


def program(name: str) -> str:
    """Return the path of a server program, where Debian puts it."""
    found = [shutil.which(name), *map(str, sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}")))]
    if not any(found):
        pytest.skip(f"there is no {name} here: apt-get install postgresql")
    return next(path for path in reversed(found) if path)


class Server:
    """One server, whose users need a password."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "sockets"
        # the server refuses to run as root
        self.user = pwd.getpwnam("postgres" if os.geteuid() == 0 else pwd.getpwuid(os.getuid()).pw_name)

    def run(self, *line: str) -> None:
        done = subprocess.run(line, **self.identity, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    @property
    def identity(self) -> dict[str, Any]:
        if os.geteuid():
            return {}
        return {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": []}

    def make(self) -> None:
        self.socket.mkdir()
        (self.folder / "password").write_text(PASSWORD)
        for path in (self.folder, self.socket, self.folder / "password"):
            os.chown(path, self.user.pw_uid, self.user.pw_gid)
        line = [program("initdb"), "-D", str(self.folder / "data"), "-U", "me", "-A", "scram-sha-256", "-N"]
        self.run(*line, "--locale=C", "-E", "UTF8", f"--pwfile={self.folder}/password")

    def start(self) -> None:
        options = f"-c listen_addresses= -c unix_socket_directories={self.socket} -c fsync=off"
        log = f"-l{self.folder}/log"
        self.run(program("pg_ctl"), "-D", str(self.folder / "data"), log, "-w", "-o", options, "start")

    def stop(self) -> None:
        with suppress(FileNotFoundError):
            pid = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
            os.kill(pid, signal.SIGQUIT)
            while Path(f"/proc/{pid}").exists():
                with suppress(ChildProcessError):
                    os.waitpid(pid, 0)

    def table(self, name: str = "predictions", user: str = "me") -> OutputTable:
        found = table_of(f"postgresql://{user}@/postgres?host={self.socket}&table={name}")
        assert found is not None
        return found

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        with (
            closing(dbapi.connect(self.table().url, autocommit=True)) as database,
            database.cursor() as cursor,
        ):
            cursor.execute(sql)
            return list(cursor.fetchall()) if sql.startswith("SELECT") else []


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    # not in pytest's own directory, into which other users, such as that of the server, can't look
    with tempfile.TemporaryDirectory(prefix="elasticdl-") as folder:
        server = Server(Path(folder))
        server.make()
        server.start()
        yield server
        server.stop()


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    running.ask("DROP SCHEMA IF EXISTS public CASCADE")
    running.ask("CREATE SCHEMA public")
    running.ask("GRANT USAGE ON SCHEMA public TO PUBLIC")
    return running


def tables(server: Server) -> set[str]:
    return {name for (name,) in server.ask("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


@pytest.mark.parametrize("make", [predictions, vectors], ids=["", "vectors"])
def test_a_table_has_the_rows_of_the_files_once(server: Server, tmp_path: Path, make: Any) -> None:
    target = server.table()
    check(target)
    assert tables(server) == set()
    loading = load(target)
    loading.check_columns(make(0, 1).schema)
    for _ in range(2):
        loading.load(parts(tmp_path, make), RECORDS)
    wanted = make(0, RECORDS).to_pylist()
    for row in wanted:  # matrices are written row by row
        row |= {"square": [*itertools.chain(*row["square"])]} if "square" in row else {}
    assert [list(row) for row in server.ask("SELECT * FROM predictions")] == [
        list(row.values()) for row in wanted
    ]
    assert server.ask("SELECT load_id, table_name, row_count FROM elasticdl_loads") == [
        ("one", "predictions", RECORDS)
    ]
    with pytest.raises(BadSetting, match=r"the table predictions of .* exists"):
        load(target, "other").load(parts(tmp_path, make), RECORDS)
    with pytest.raises(BadSetting, match=r"the table predictions of .* exists"):
        check(target)


def test_what_is_refused(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ask("DROP ROLE IF EXISTS reader")
    server.ask("CREATE ROLE reader LOGIN PASSWORD 'x'")
    for target, password, said in (
        (server.table(), "wrong", "password authentication failed"),
        (server.table("nowhere.predictions"), PASSWORD, "nowhere"),
        (server.table(user="reader"), "x", "permission denied for schema public"),
    ):
        monkeypatch.setenv("PGPASSWORD", password)
        with pytest.raises(BadSetting, match=said) as refused:
            check(target)
        assert PASSWORD not in str(refused.value)
        with pytest.raises(BadSetting, match=said):
            load(target).load(parts(tmp_path), RECORDS)


def test_a_load_waits_for_the_one_before_it_and_finds_it(server: Server, tmp_path: Path) -> None:
    target, other = server.table(), dbapi.connect(server.table().url)
    cursor = other.cursor()
    cursor.execute("CREATE TABLE elasticdl_loads (load_id VARCHAR(64) PRIMARY KEY)")
    cursor.execute("INSERT INTO elasticdl_loads VALUES ('one')")
    waiting = Waiting()

    def meanwhile() -> None:
        waiting.meanwhile = lambda: None
        other.commit()
        cursor.close()
        other.close()

    waiting.meanwhile = meanwhile
    load(target, patience=waiting.patience()).load(parts(tmp_path), RECORDS)
    assert "lock timeout" in waiting.notes[0]
    assert tables(server) == {"elasticdl_loads"}


def test_a_server_that_stops_in_the_middle_is_waited_for(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elasticdl.data.writers import postgresqltables

    stopped: list[bool] = []

    class Stopped(postgresqltables._Connection):
        def commit(self) -> None:
            if not stopped:
                stopped.append(True)
                server.stop()
            super().commit()

    monkeypatch.setattr(postgresqltables, "_Connection", Stopped)
    waiting = Waiting(server.start)

    def meanwhile() -> None:
        waiting.meanwhile = lambda: None
        server.start()

    waiting.meanwhile = meanwhile
    load(server.table(), patience=waiting.patience()).load(parts(tmp_path), RECORDS)
    assert server.ask("SELECT count(*) FROM predictions") == [(RECORDS,)]
    assert server.ask("SELECT count(*) FROM elasticdl_loads") == [(1,)]
    server.stop()
    with pytest.raises(StorageAway, match="has not answered for 30 s"):
        load(server.table("more"), patience=Waiting().patience(30)).load(parts(tmp_path), RECORDS)
    server.start()
    assert tables(server) == {"predictions", "elasticdl_loads"}
