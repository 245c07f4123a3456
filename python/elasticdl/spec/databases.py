"""A table of a database as a URL names it: `sqlite:///flights.db?table=train`. Nothing here opens one.

Readers ask for the rows of such a table or of a query; predictions go to a table that is new.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, unquote, urlencode

from elasticdl.errors import BadSetting
from elasticdl.spec.readers import DATABASES, FILE_DATABASES, database_file, scheme_of

LOADS = "elasticdl_loads"
"""Name of the project's own table in a database: a row for each table that a job has written."""
_LONGEST = 63
"""Bytes of a name that PostgreSQL keeps; it cuts off the rest. https://www.postgresql.org/docs/current/sql-syntax-lexical.html"""
_URL = "sqlite:///FILE?table=NAME, duckdb:///FILE?table=NAME or postgresql://USER@HOST/DATABASE?table=NAME"


@dataclass(frozen=True, slots=True)
class OutputTable:
    """Where predictions go.

    Attributes:
        url: of the database, without the table.
        table: its name, perhaps after that of a schema and a dot.
        name: what people call it: the whole URL, which has no password.
    """

    url: str
    table: str
    name: str

    @property
    def scheme(self) -> str:
        """Return what kind of database it is."""
        return scheme_of(self.url)

    @property
    def file(self) -> str:
        """Return the database's file; empty if it is a server's."""
        return database_file(self.url)

    @property
    def loads(self) -> str:
        """Return the name of the project's own table, in the same schema, as SQL has it."""
        return quoted_table(".".join([*self.table.split(".")[:-1], LOADS]))

    @property
    def quoted(self) -> str:
        """Return its name as SQL has it."""
        return quoted_table(self.table)

    def check_name(self, name: str, what: str) -> None:
        """Raise BadSetting if the database does not keep all of the name of `what`."""
        count = len(name.encode())
        if count > _LONGEST and self.scheme not in FILE_DATABASES:
            raise BadSetting(
                f"--output: {what} {name!r} has {count} bytes, and PostgreSQL cuts off names after {_LONGEST}; give it a shorter name, or "
                "write files instead: --output=DIRECTORY"
            )


def table_of(output: str) -> OutputTable | None:
    """Read `--output` of a prediction; None if it is no URL, but a directory. Raises BadSetting."""
    if not scheme_of(output):
        return None
    shown = without_password(output)
    if scheme_of(output) not in DATABASES:
        raise BadSetting(
            f"--output: predictions go to a new directory of this file system, or to a table: {_URL}; received "
            f"{shown.partition('?')[0]!r}"
        )
    url, _, rest = output.partition("?")
    parameters = parse_qsl(rest, keep_blank_values=True)
    if shown != output or any(name == "password" for name, _ in parameters):
        raise BadSetting(
            "--output: leave the password out of the URL, which settings, logs and journals keep; PostgreSQL takes it from PGPASSWORD "
            "or ~/.pgpass, and in pods --populate_env_names=PGPASSWORD copies the variable"
        )
    if any(name == "sslpassword" for name, _ in parameters):
        raise BadSetting(
            "--output: leave sslpassword out of the URL, which settings, logs and journals keep; sslkey= takes a key without a passphrase, "
            "in a file that only its owner can read"
        )
    tables = [value for name, value in parameters if name == "table"]
    if len(tables) != 1 or not all(tables[0].split(".")) or tables[0].count(".") > 1:
        raise BadSetting(f"--output: name one new table of {url}: {_URL}; received {output!r}")
    if tables[0].split(".")[-1].lower() == LOADS:
        raise BadSetting(f"--output: {LOADS} is the name of a table of ElasticDL's own; name another one")
    others = [(name, value) for name, value in parameters if name != "table"]
    if scheme_of(output) in FILE_DATABASES and (others or not database_file(output)):
        raise BadSetting(
            f"--output: a database of {scheme_of(output)} is a file and has no parameter but the table: "
            f"{scheme_of(output)}:///FILE?table=NAME; received {output!r}"
        )
    table = OutputTable(with_parameters(url, others), tables[0], output)
    for name, what in zip(reversed(tables[0].split(".")), ("the table", "the schema"), strict=False):
        table.check_name(name, what)
    return table


def with_parameters(url: str, parameters: Sequence[tuple[str, object]]) -> str:
    """Return the URL of a database with parameters, as libpq reads them: to it a `+` is no space."""
    return f"{url}?{urlencode(parameters, quote_via=quote)}" if parameters else url


def without_password(url: str) -> str:
    """Return a URL as it may be shown, also if its password has a `/` or `@` that should have been escaped."""
    return re.sub(r"(://[^:@/?]*):[^?]*@", r"\1:***@", url)


_SECRET = re.compile(r"://[^:@/?]*:([^?]*)@|[?&][a-z]*password=([^&]*)")


def passwords(url: str) -> tuple[str, ...]:
    """Return the passwords of a URL, as they are written there and as they are; the URL may be wrong."""
    found = {one for groups in _SECRET.findall(url) for one in groups if one}
    return tuple(found | {unquote(one) for one in found})


def quoted_table(table: str) -> str:
    """Return the name of a table, perhaps with that of its schema, as SQL has it."""
    return ".".join(map(quoted, table.split(".")))


def quoted(name: str) -> str:
    """Return a name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def as_written(name: str) -> str:
    """Return a name as people write it in SQL: quoted if it has other characters than letters, digits and `_`."""
    return name if name.isidentifier() else quoted(name)


def text(value: str) -> str:
    """Return a text as SQL has it."""
    return "'" + value.replace("'", "''") + "'"
