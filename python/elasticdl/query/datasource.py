"""The database of an SQLFlow session: its `datasource`, which drivers of Go read, as a URL of ours.

Formats: https://github.com/go-sql-driver/mysql#dsn-data-source-name, and for the others SQLFlow's own.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qs, quote

from elasticdl.errors import BadSetting

_MYSQL = re.compile(
    r"(?P<user>[^:@/]*)(?::(?P<password>.*))?@(?P<protocol>\w*)(?:\((?P<address>[^)]*)\))?/(?P<database>[^/?]*)(?:\?(?P<parameters>.*))?"
)
_MYSQL_FORM = "mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE"
_PLAIN = ("", "false", "preferred")
"""Values of `tls` with which a server without TLS will do."""
_REFUSED = {
    "hive": "statements don't read Hive: write the table to Parquet files, and train with `elasticdl train --training_data=DIR`, which "
    "reads hdfs:// too",
    "maxcompute": "steps keep a model in a table that they replace, which MaxCompute does not do all or none; `elasticdl train "
    "--training_data=odps://PROJECT/TABLE` reads its tables",
    "alisa": "steps don't reach MaxCompute through Alisa; `elasticdl train --training_data=odps://PROJECT/TABLE` reads its tables",
    "clickhouse": "statements don't read ClickHouse: write the rows to Parquet files, and train with `elasticdl train --training_data=DIR`",
}
"""Scheme → what serves instead."""


def url_of(datasource: str) -> str:
    """Return the URL of a session's database. Raises BadSetting, which shows no password."""
    scheme, _, rest = datasource.partition("://")
    if not rest:
        raise BadSetting(f"the datasource of SQLFlow is DRIVER://…, such as {_MYSQL_FORM}")
    if scheme in _REFUSED:
        raise BadSetting(f"the datasource of SQLFlow is {scheme}://…: {_REFUSED[scheme]}")
    match scheme:
        case "mysql":
            return _mysql(rest)
        case "sqlite3":
            return f"sqlite:///{rest}"
    return datasource


def _mysql(rest: str) -> str:
    found = _MYSQL.fullmatch(rest)
    if found is None:
        raise BadSetting(f"the datasource of SQLFlow is mysql://…, but not of the form {_MYSQL_FORM}")
    host, parameters = found["address"] or "127.0.0.1:3306", ""
    match found["protocol"]:
        case "unix":
            host, parameters = "localhost", f"?unix_socket={quote(found['address'] or '', safe='/')}"
        case "" | "tcp":
            pass
        case other:
            raise BadSetting(
                f"the datasource of SQLFlow reaches MySQL by {other}; steps reach it by TCP or a Unix socket: {_MYSQL_FORM}"
            )
    tls = parse_qs(found["parameters"] or "").get("tls", [""])[-1].lower()
    if tls not in _PLAIN:
        raise BadSetting(
            f"the datasource of SQLFlow asks for tls={tls}, which steps don't have; leave it out where the network is trusted"
        )
    password = f":{quote(found['password'], safe='')}" if found["password"] else ""
    return f"mysql://{quote(found['user'], safe='')}{password}@{host}/{found['database']}{parameters}"
