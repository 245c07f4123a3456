"""Tables of databases as URLs name them."""

from __future__ import annotations

import pytest

from elasticdl.errors import BadSetting
from elasticdl.spec.databases import table_of, without_password


@pytest.mark.parametrize(
    ("output", "url", "table", "file"),
    [
        ("sqlite:///a/b.db?table=t", "sqlite:///a/b.db", "t", "a/b.db"),
        ("duckdb:////a/b.db?table=s.t", "duckdb:////a/b.db", "s.t", "/a/b.db"),
        (
            "postgresql://me@host:5/db?sslmode=require&table=t",
            "postgresql://me@host:5/db?sslmode=require",
            "t",
            "",
        ),
        (
            "postgresql://me@host/db?options=-c%20a%3Db&table=t",
            "postgresql://me@host/db?options=-c%20a%3Db",
            "t",
            "",
        ),
    ],
)
def test_a_table(output: str, url: str, table: str, file: str) -> None:
    found = table_of(output)
    assert found is not None
    assert (found.url, found.table, found.file, found.name) == (url, table, file, output)


def test_a_directory_is_no_table() -> None:
    assert table_of("predictions") is None
    assert table_of("") is None


def test_names_that_are_just_short_enough() -> None:
    assert table_of(f"postgresql://host/db?table={'s' * 63}.{'t' * 63}") is not None
    assert table_of(f"duckdb:///x.db?table={'t' * 64}") is not None


def test_names_as_sql_has_them() -> None:
    found = table_of('duckdb:///x.db?table=a"b.c')
    assert found is not None
    assert (found.quoted, found.loads) == ('"a""b"."c"', '"a""b"."elasticdl_loads"')


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (
            "s3://bucket/x",
            r"to a new directory of this file system, or to a table: .*; received 's3://bucket/x'",
        ),
        ("mysql://me:hidden@host/db?table=t", r"or to a table: .*; received 'mysql://me:\*\*\*@host/db'"),
        ("postgresql://me:hidden@host/db?table=t", "leave the password out of the URL, .* PGPASSWORD"),
        ("postgresql://me:hid/den@host/db?table=t", "leave the password out of the URL"),
        ("postgresql://me@host/db?table=t&password=hidden", "leave the password out of the URL"),
        (
            "postgresql://me@host/db?table=t&sslpassword=hidden",
            "leave sslpassword out of the URL, .* sslkey=",
        ),
        ("sqlite:///x.db", "name one new table of sqlite:///x.db: "),
        ("sqlite:///x.db?table=", "name one new table"),
        ("sqlite:///x.db?table=a.", "name one new table"),
        ("sqlite:///x.db?table=a&table=b", "name one new table"),
        ("duckdb:///x.db?table=a.b.c", "name one new table"),
        ("sqlite:///x.db?table=Elasticdl_Loads", "elasticdl_loads is the name of a table of ElasticDL's own"),
        ("sqlite:///x.db?table=a&mode=ro", "is a file and has no parameter but the table"),
        ("duckdb://?table=a", "is a file and has no parameter but the table"),
        (
            f"postgresql://host/db?table=s.{'ü' * 32}",
            "the table 'ü+' has 64 bytes, and PostgreSQL cuts off names after 63; give it a shorter",
        ),
        (f"postgres://host/db?table={'s' * 64}.t", "the schema 's+' has 64 bytes"),
    ],
)
def test_urls_that_are_wrong(output: str, said: str) -> None:
    with pytest.raises(BadSetting, match=said) as raised:
        table_of(output)
    assert "hidden" not in str(raised.value)


def test_a_password_is_not_shown() -> None:
    for password in ("hidden", "hid/den", "hid@den"):
        assert without_password(f"postgresql://me:{password}@host:5/db") == "postgresql://me:***@host:5/db"
    for url in ("postgresql://host:5432/db", "postgresql://me@host:5432/db?options=a:b@c"):
        assert without_password(url) == url
