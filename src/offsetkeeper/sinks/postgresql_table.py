"""What PostgreSQL's catalog says about a sink's table."""

from __future__ import annotations

from typing import NamedTuple

from psycopg import sql

from offsetkeeper.errors import SettingsError
from offsetkeeper.sinks.postgresql_types import PostgreSQLColumn
from offsetkeeper.sinks.target import Target, no_table, no_unique_index
from offsetkeeper.stores.postgresql import Connection

_FIND = """
    select c.oid, n.nspname, c.relname, c.relkind in ('r', 'p'), current_schema(), current_user,
        has_any_column_privilege(c.oid, 'insert'), has_any_column_privilege(c.oid, 'update'),
        has_any_column_privilege(c.oid, 'select'), has_schema_privilege(current_schema(), 'create')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)"""
_COLUMNS = """
    select a.attname, format_type(a.atttypid, a.atttypmod),
        (a.attnotnull or t.typnotnull) and not a.atthasdef and a.attidentity = '' and t.typdefault is null,
        a.attgenerated <> '' or a.attidentity = 'a',
        s.nspname, b.typname, coalesce(e.typname, b.typname), coalesce(e.typcategory, b.typcategory)::text,
        e.oid is not null, case when t.typtype = 'd' then t.typtypmod else a.atttypmod end
    from pg_attribute a join pg_type t on t.oid = a.atttypid
        join pg_type b on b.oid = case when t.typtype = 'd' then t.typbasetype else t.oid end
        join pg_namespace s on s.oid = b.typnamespace
        left join pg_type e on e.oid = b.typelem and b.typcategory = 'A'
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum"""
_UNIQUE = """
    select array_agg(a.attname::text) from pg_index i
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any ((i.indkey::int2[])[0:i.indnkeyatts - 1])
    where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate
        and i.indpred is null and i.indexprs is null
    group by i.indexrelid"""


class Relation(NamedTuple):
    """A table that was found.

    Attributes:
        oid: PostgreSQL's id of it.
        schema: that it is in.
        name: without its schema.
        plain: whether it is a table, partitioned or not, and no view or foreign table.
        workplace: the schema that new tables are made in, or None.
        role: who asks.
        insert, update, select: what the role may do with the table.
        create: whether the role may make tables in `workplace`.
    """

    oid: int
    schema: str
    name: str
    plain: bool
    workplace: str | None
    role: str
    insert: bool
    update: bool
    select: bool
    create: bool


def find_table(connection: Connection, target: Target, address: str) -> Relation:
    """Return the table.

    Raises:
        SettingsError: there is none, or not one that rows can be staged for.
    """
    names = [name for name in (target.schema, target.table) if name]
    row = connection.execute(_FIND, [sql.Identifier(*names).as_string(connection)]).fetchone()
    if row is None:
        raise no_table(target, address)
    relation = Relation(*row)
    if not relation.plain:
        raise SettingsError(f"{address}: {target} is a view or a foreign table; give the table that rows are kept in")
    return relation


def columns_of(connection: Connection, relation: Relation) -> list[PostgreSQLColumn]:
    """Return the table's columns, in order."""
    return [PostgreSQLColumn(*row) for row in connection.execute(_COLUMNS, [relation.oid])]


def check_table(connection: Connection, target: Target, address: str) -> None:
    """Check what can be checked before a frame is there: the table, the user's permissions, the key.

    Raises:
        SettingsError: one of them is not as it must be.
    """
    relation = find_table(connection, target, address)
    lacking = _lacking(relation, target)
    if lacking:
        raise SettingsError(f"{address}: user {relation.role} lacks permissions for {target}: {'; '.join(lacking)}")
    unique = [set(columns) for (columns,) in connection.execute(_UNIQUE, [relation.oid])]
    if target.key and set(target.key) not in unique:
        raise no_unique_index(target, address)


def _lacking(relation: Relation, target: Target) -> list[str]:
    upsert = target.mode == "upsert"
    needed = {
        f"grant insert on {target}": relation.insert,
        f"grant update on {target}": relation.update or not upsert,
        f"grant select on {target}": relation.select or not upsert,
        f"grant create on schema {relation.workplace} (rows are staged there)": relation.create,
        "set a search_path with a schema in it (rows are staged there)": relation.workplace is not None,
    }
    return [remedy for remedy, there in needed.items() if there is False]
