"""The columns of a table in PostgreSQL, and which Spark types each type can hold without loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg import sql

from offsetkeeper.clients.postgresql import Connection
from offsetkeeper.errors import Refused, SinkError
from offsetkeeper.sinks.limits import Limits, all_nines
from offsetkeeper.sinks.table import Column, Target, merged_keys, no_table, no_unique_index

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

# In tgtype 4 is insert, and 16 is update.
_FIND = """
    select c.oid, n.nspname, c.relname, c.relkind in ('r', 'p'), current_schema(), current_user,
        has_any_column_privilege(c.oid, 'insert'), has_any_column_privilege(c.oid, 'update'),
        has_any_column_privilege(c.oid, 'select'), has_schema_privilege(current_schema(), 'create'),
        exists (select from pg_trigger t where t.tgtype & (4 | 16) <> 0 and not t.tgisinternal
            and (t.tgrelid = c.oid or t.tgrelid in (select relid from pg_partition_tree(c.oid)))),
        (select min(rulename) from pg_rewrite where ev_class = c.oid and ev_type = '3' and is_instead)::text,
        (select min(inhrelid::regclass::text) from pg_inherits where inhparent = c.oid and c.relkind = 'r')
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass(%s)"""
# All tables that may get the rows: partitions, and where a trigger or a rule may send rows there, heirs too. A
# partitioned table has no rows of its own.
_LOSING = """
    with recursive parts (oid) as (
        select {oid}::oid
        union
        select i.inhrelid from parts p join pg_inherits i on i.inhparent = p.oid join pg_class c on c.oid = p.oid
        where c.relkind = 'p' or c.relhasrules or exists (
            select from pg_trigger t where t.tgrelid = c.oid and not t.tgisinternal and t.tgtype & 4 <> 0))
    select c.oid::regclass::text, c.relkind::text, c.relpersistence::text
    from parts p left join pg_class c on c.oid = p.oid
    where c.oid is null or c.relkind <> 'p' and (c.relkind <> 'r' or c.relpersistence <> 'p') order by 1 limit 1"""
# A domain may be of a domain, and an array of domains: what counts is the type at the end, and its modifier.
_COLUMNS = """
    with recursive bases (type, base, modifier, required) as (
        select oid, oid, -1, false from pg_type where typtype <> 'd'
        union all
        select d.oid, b.base, greatest(d.typtypmod, b.modifier), d.typnotnull or b.required
        from pg_type d join bases b on b.type = d.typbasetype where d.typtype = 'd')
    select a.attname, format_type(a.atttypid, a.atttypmod),
        (a.attnotnull or x.required) and not a.atthasdef and a.attidentity = '' and t.typdefault is null,
        a.attgenerated <> '' or a.attidentity = 'a', not (a.attnotnull or x.required),
        s.nspname, b.typname, coalesce(e.typname, b.typname), coalesce(e.typcategory, b.typcategory)::text,
        e.oid is not null, greatest(a.atttypmod, x.modifier, y.modifier), current_setting('server_encoding'),
        coalesce(e.typnamespace, b.typnamespace) = 'pg_catalog'::regnamespace
    from pg_attribute a join pg_type t on t.oid = a.atttypid join bases x on x.type = t.oid
        join pg_type b on b.oid = x.base join pg_namespace s on s.oid = b.typnamespace
        left join bases y on y.type = b.typelem and b.typcategory = 'A' left join pg_type e on e.oid = y.base
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped order by a.attnum"""
_UNIQUE = """
    select array_agg(a.attname::text), array_agg(n.nspname::text), array_agg(o.collname::text),
        array_agg(o.collisdeterministic), array_agg(c.opcnamespace = 'pg_catalog'::regnamespace)
    from pg_index i
        cross join lateral unnest(i.indkey::int2[], i.indcollation::oid[], i.indclass::oid[])
            with ordinality k (part, sorted, class, place)
        join pg_opclass c on c.oid = k.class
        join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.part
        left join pg_collation o on o.oid = k.sorted left join pg_namespace n on n.oid = o.collnamespace
    where i.indrelid = %s and i.indisunique and i.indisvalid and i.indimmediate
        and i.indpred is null and i.indexprs is null and k.place <= i.indnkeyatts
    group by i.indexrelid"""


@dataclass(frozen=True)
class PostgreSQLColumn(Column):
    """One column of a table in PostgreSQL.

    Attributes:
        schema, name_of_type: schema and name of its type; for a domain, of its base type.
        kind: name of that type; for an array, of its elements.
        category: PostgreSQL's letter for the kind, such as S for strings.
        array: whether it is an array.
        modifier: precision, scale or length, as PostgreSQL packs them; -1 for none.
        encoding: of the database.
        of_system: whether `kind` is a type of PostgreSQL's own.
    """

    schema: str
    name_of_type: str
    kind: str
    category: str
    array: bool
    modifier: int
    encoding: str = "UTF8"
    of_system: bool = True


class _Wire(NamedTuple):
    """The staging type of a Spark type, and the kinds of columns that can hold all its values."""

    staged: str
    kinds: frozenset[str]


def _wire(staged: str, *kinds: str) -> _Wire:
    return _Wire(staged, frozenset({staged, *kinds}))


# Whole numbers may go into narrower columns: PostgreSQL refuses values that do not fit, and so the batch.
_WIRES: Mapping[str, _Wire] = {
    "byte": _wire("int2", "int4", "int8", "numeric", "float4", "float8"),
    "short": _wire("int2", "int4", "int8", "numeric", "float4", "float8"),
    "integer": _wire("int4", "int2", "int8", "numeric", "float8"),
    "long": _wire("int8", "int2", "int4", "numeric"),
    "float": _wire("float4", "float8"),
    "double": _wire("float8"),
    "decimal": _wire("numeric"),
    "string": _wire("text", "varchar", "bpchar", "citext", "time", "timetz", "interval"),
    "binary": _wire("bytea"),
    "boolean": _wire("bool"),
    "date": _wire("date", "timestamp"),
    "timestamp": _wire("timestamptz"),
    "timestamp_ntz": _wire("timestamp"),
}
# Categories that PostgreSQL reads from text: enums, networks, geometry, bit strings, ranges, json, uuid and others.
_FROM_TEXT = frozenset("EIGVRU")
_OF_SYSTEM = ("tid", "cid", "xid", "xid8")  # for which 010 is 8, and -1 is the greatest number
_NOT_FROM_TEXT = frozenset({"bytea", *_OF_SYSTEM})
# Base types of others may round, as pgvector's `vector` does. These keep what a text stands for; shapes have doubles.
_OF_EXTENSIONS = frozenset({"hstore", "ltree", "lquery", "ltxtquery", "geometry", "cube"})
_ENUM = "E"
_RANGE = "R"
_RANGES = frozenset(
    f"{of}{kind}" for of in ("int4", "int8", "num", "ts", "tstz", "date") for kind in ("range", "multirange")
)
_WHOLE = {"byte": 3, "short": 5, "integer": 10, "long": 19}  # most digits
_BITS = {"byte": 7, "short": 15, "integer": 31, "long": 63, "int2": 15, "int4": 31, "int8": 63}
_LENGTHS = frozenset({"varchar", "bpchar"})
_TIMES = frozenset({"time", "timetz"})
_READ_IN_KEYS = frozenset({"timetz", "interval"})
_BY_BYTES = frozenset("EV")  # categories of which equal values are equal texts: enums, bit strings
_ALL_DIGITS = 6
# Forms of texts that mean the same whatever zone and styles a session has, and that no type rounds.
_CLOCK = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d{{0,{digits}}}0*)?)?"
_OFFSET = r"([+-]\d\d(:?[0-5]\d)?|Z)"
_DAY = r"\d{4,6}-\d\d-\d\d"
_WALL = rf"{_DAY}[ T]{_CLOCK.format(digits=_ALL_DIGITS)}"


def _range(value: str) -> str:
    end = rf'("?({value}|-?infinity)"?)?'
    return rf"empty|[\[(]{end}, ?{end}[\])]"


def _ranges(value: str) -> str:
    return rf"\{{(({_range(value)})(, ?({_range(value)}))*)?\}}"


_OF_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "macaddr8": {
        "form": r"([0-9a-fA-F]{2}[:.-]?){7}[0-9a-fA-F]{2}",
        "remedy": "is not an address of 8 bytes: PostgreSQL would make 8 of 6",
    },
    "tstzrange": {"form": _range(_WALL + _OFFSET), "remedy": "is not a range like [2024-07-01 12:00+00,)"},
    "tstzmultirange": {"form": _ranges(_WALL + _OFFSET), "remedy": "is not ranges like {[2024-07-01 12:00+00,)}"},
    "tsrange": {"form": _range(_WALL), "remedy": "is not a range like [2024-07-01 12:00,), without a zone"},
    "tsmultirange": {"form": _ranges(_WALL), "remedy": "is not ranges like {[2024-07-01 12:00,)}, without a zone"},
    "daterange": {"form": _range(_DAY), "remedy": "is not a range like [2024-07-01,)"},
    "datemultirange": {"form": _ranges(_DAY), "remedy": "is not ranges like {[2024-07-01,)}"},
    "interval": {
        # A sign at the front is that of all fields if the session's style is sql_standard and no other field has one.
        "form": r"[\s@]*[\dA-Za-z+.].*|[\s@]*-\s*[\d.:\-]*\D*|[\s@]*-\s*\d.*\s[+\-].*",
        "bars": r"(?i)\.\d{7}|\.\d{4,}[\W_]*m(s|illis)|\.\d+[\W_]*(us|micros)|\de[+\-]?\d"
        r"|\.\d*[1-9]\d*[\W_]*(y|dec|c|mil($|[^l]|l[^i]))|p-?\d*\.\d+(-|t|$)|t-?\d{6}\.\d+$",
        "remedy": "has more than 6 digits of a second, a part of a year, or a sign of which the session decides how "
        "far it reaches",
    },
}
# Of all encodings that a database can have, PostgreSQL changes no other character of 16 bits on its way there and back.
_OF_ENCODINGS: Mapping[str, Mapping[str, Any]] = {
    "EUC_JP": {"bars": "\u00a6", "remedy": "has U+00A6, which the database's encoding EUC_JP makes U+FFE4"}
}
# The spelling that PostgreSQL gives back; other spellings would be other texts for the same key.
_OF_KEYS: Mapping[str, Mapping[str, Any]] = {
    "uuid": {
        "form": r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
        "remedy": "is not spelled as PostgreSQL spells it in a key: use lower(), and hyphens alone",
    },
    "time": {
        "form": r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d",
        "remedy": "is not spelled as PostgreSQL spells it in a key, such as 09:30:00 or 09:30:00.5, or has more digits "
        "of a second than the column",
    },
}
_REMEDIES = {
    ("timestamp", "timestamp"): "would lose its time zone: make the column timestamptz, or cast to timestamp_ntz",
    ("timestamp_ntz", "timestamptz"): "has no time zone: make the column timestamp, or cast to timestamp",
    ("double", "numeric"): "would be rounded: cast to decimal",
    ("float", "numeric"): "would be rounded: cast to decimal",
    ("string", "geography"): "would be changed beyond 90 degrees of latitude, or 180 of longitude: make the column "
    "geometry or text",
    ("double", "float4"): "would be rounded: cast to float",
    **{
        ("string", kind): "would be octal or wrap around in some numbers: make it text or numeric"
        for kind in _OF_SYSTEM
    },
}


def staged_type(data_type: DataType) -> str:
    """Return the PostgreSQL type that stages values of a Spark type; "" if there is none."""
    kind, element = data_type.typeName(), getattr(data_type, "elementType", None)
    if kind == "void":
        return "text"
    if element is not None:
        return f"{_WIRES[element.typeName()].staged}[]" if element.typeName() in _WIRES else ""
    return _WIRES[kind].staged if kind in _WIRES else ""


def misfit(data_type: DataType, column: PostgreSQLColumn) -> str:
    """Return why a column cannot hold every value of a Spark type unchanged, or "" if it can."""
    if data_type.typeName() == "void":
        return ""
    staged = staged_type(data_type)
    if not staged:
        return "has no counterpart in PostgreSQL: use to_json into a column of json or text"
    if staged.endswith("[]") != column.array:
        return "does not fit: only one of both is an array; use to_json into a column of json or text"
    return _misfit(getattr(data_type, "elementType", data_type), column)


def _misfit(data_type: Any, column: PostgreSQLColumn) -> str:
    name = data_type.typeName()
    scale = getattr(data_type, "scale", 0)
    if column.kind == "numeric" and name in {"decimal", *_WHOLE} and scale > _scale(column.modifier):
        return "would be rounded: cast to a decimal of the column's scale"
    if column.kind == "tsvector":
        return "would be cut: make the column text, and another one generated by to_tsvector"
    if column.kind == "interval" and column.modifier >= 0:
        return "would be cut: make the column an interval without fields and precision"
    if column.kind in _WIRES[name].kinds or (_WIRES[name].staged == "text" and _read_from_text(column)):
        return ""
    if name == "string" and _is_unknown(column) and (name, column.kind) not in _REMEDIES:
        return f"may be changed by type {column.kind} of an extension, which is not known here: make the column text"
    return _REMEDIES.get((name, column.kind), "does not fit: cast in the frame")


def _read_from_text(column: PostgreSQLColumn) -> bool:
    if column.category == _RANGE and column.kind not in _RANGES:
        return False  # of a type of the user's own, whose values the session's zone may decide
    return column.category in _FROM_TEXT and column.kind not in _NOT_FROM_TEXT and not _is_unknown(column)


def _is_unknown(column: PostgreSQLColumn) -> bool:
    """Whether a type that is read from text is neither PostgreSQL's own nor known to keep what a text stands for."""
    known = column.of_system or column.category in {_ENUM, _RANGE} or column.kind in _OF_EXTENSIONS
    return column.category in _FROM_TEXT and not known


def limits(data_type: DataType, column: PostgreSQLColumn) -> Limits:
    """Return what values of a Spark type must be, so that a column that fits the type keeps them unchanged."""
    plain = Limits(column.name, column.type, column.nullable)
    element: Any = getattr(data_type, "elementType", data_type)
    kind, modifier = column.kind, column.modifier
    if element.typeName() == "void":
        return plain
    if element.typeName() == "string":
        return _limits_of_text(plain, column)
    if kind in _BITS:
        fits = _BITS[element.typeName()] <= _BITS[kind]
        return plain if fits else plain._replace(least=-(2 ** _BITS[kind]), most=2 ** _BITS[kind] - 1)
    if kind == "numeric" and modifier >= 0:
        precision, scale = (modifier - 4) >> 16, _scale(modifier)
        digits = _WHOLE.get(element.typeName()) or element.precision - element.scale
        most = all_nines(precision, scale)
        return plain if digits <= precision - scale else plain._replace(least=most.copy_negate(), most=most)
    instants = element.typeName() in {"timestamp", "timestamp_ntz"}
    return plain._replace(digits=modifier) if instants and modifier >= 0 else plain


def _limits_of_text(plain: Limits, column: PostgreSQLColumn) -> Limits:
    """The forms are those that no setting of the session changes, such as its time zone and its styles."""
    kind, modifier = column.kind, column.modifier
    plain = plain._replace(**_OF_ENCODINGS.get(column.encoding, {}))
    if kind in _LENGTHS:
        length = modifier - 4 if modifier >= 0 else None
        plain = plain._replace(blanks=kind != "bpchar")
        return plain._replace(bytes=length) if column.encoding == "SQL_ASCII" else plain._replace(characters=length)
    if kind in _TIMES:
        digits = _digits(column)
        form, like = (_CLOCK, "09:30:00") if kind == "time" else (_CLOCK + _OFFSET, "09:30:00+01")
        remedy = f"is not a time like {like}, or has more digits of a second than {digits}"
        return plain._replace(form=form.format(digits=digits), remedy=remedy)
    if kind == "bit":
        return plain._replace(form=f"[01]{{{modifier}}}", remedy=f"is not {modifier} digits 0 or 1")
    if kind == "varbit":
        most = "" if modifier < 0 else str(modifier)
        return plain._replace(form=f"[01]{{0,{most}}}", remedy="is not digits 0 and 1 that fit")
    return plain._replace(**_OF_TEXTS.get(kind, {}))


def limits_in_key(data_type: DataType, column: PostgreSQLColumn) -> Limits:
    """Return the limits of a column in a key that holds texts by their bytes: each value has one spelling."""
    found = limits(data_type, column)._replace(**_OF_KEYS.get(column.kind, {}))
    most = _digits(column) - 1
    fraction = rf"(\.\d{{0,{most}}}[1-9])?" if column.kind == "time" and most >= 0 else ""
    return found._replace(form=f"{found.form}{fraction}")


def _digits(column: PostgreSQLColumn) -> int:
    """Return how many digits of a second a column of a time keeps."""
    return _ALL_DIGITS if column.modifier < 0 else column.modifier


def _merges(column: PostgreSQLColumn, nondeterministic: bool) -> str:  # noqa: FBT001 - private
    """Return what a key column takes for the same; "" if equal values are equal texts."""
    if nondeterministic:
        return "has a collation that is not deterministic, for which different texts are one key"
    if column.kind == "citext":
        return "is citext, for which 'a' and 'A' are one key"
    read = _read_from_text(column) or column.kind in _READ_IN_KEYS
    if read and column.category not in _BY_BYTES and column.kind not in _OF_KEYS:
        return "has a type for which different texts are one value"
    return ""


def _scale(modifier: int) -> int:
    """Return the scale of a numeric column; a numeric without one keeps every digit."""
    if modifier < 0:
        return 1000
    packed = (modifier - 4) & 0x7FF
    return packed - 2048 if packed >= 1024 else packed  # noqa: PLR2004 - 11 bits with a sign


class Relation(NamedTuple):
    """A table that was found.

    Attributes:
        oid: PostgreSQL's id of the table.
        schema: schema of the table.
        name: name without the schema.
        plain: whether it is a table, partitioned or not, but not a view or a foreign table.
        workplace: the schema in which new tables are created, or None.
        role: the current role.
        insert, update, select: what the role may do with the table.
        create: whether the role may create tables in `workplace`.
        triggers: whether it, or a partition, has a trigger for inserts or updates, be it enabled or not.
        instead: a rule that does something else instead of an insert, or None.
        heir: a table that inherits from it and is no partition, or None.
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
    triggers: bool
    instead: str | None
    heir: str | None


def find_table(connection: Connection, target: Target, address: str) -> Relation:
    """Return the table.

    Raises:
        Refused: the table does not exist, or is a view or a foreign table, or rows in it may be lost or doubled, or go
            elsewhere; or heirs may have its keys too.
    """
    names = [name for name in (target.schema, target.table) if name]
    row = connection.execute(_FIND, [sql.Identifier(*names).as_string(connection)]).fetchone()
    if row is None:
        raise no_table(target, address)
    relation = Relation(*row)
    if not relation.plain:
        raise Refused(f"{address}: {target} is a view or a foreign table; give the table that has the rows")
    check_parts(connection.execute(losing_statement(relation)).fetchall(), target, address)
    if relation.instead and not target.fewer_rows:
        raise Refused(
            f"{address}: rule {relation.instead} of table {target} does something else instead of an insert, so it "
            'does not get all rows: give the table that gets them, or fewer_rows="as the table" if that is meant'
        )
    if target.key and relation.heir and not (target.fewer_rows and relation.triggers):
        raise Refused(
            f"{address}: table {target} has the heir {relation.heir}, whose rows the unique index on "
            f"({', '.join(target.key)}) does not know, so a key could have a row in both: give the heir itself, or "
            'make it a partitioned table; where a trigger puts the rows into heirs, give fewer_rows="as the table"'
        )
    return relation


def identity_of(relation: Relation) -> str:
    """Return the SQL expression for the identity of the table that has this name now: its oid."""
    name = sql.Identifier(relation.schema, relation.name).as_string()
    return sql.SQL("'oid ' || to_regclass({})::oid").format(name).as_string()


def losing_statement(relation: Relation) -> sql.Composed:
    """Return the query that finds a part of a table whose rows may be lost or doubled; see `check_parts`."""
    return sql.SQL(_LOSING).format(oid=sql.Literal(relation.oid))


def check_parts(found: Sequence[tuple[str | None, str, str]], target: Target, address: str) -> None:
    """Check that a table and its partitions keep committed rows, and commit with this database.

    Args:
        found: what the query of `losing_statement` has found.
        target: the table.
        address: address of the database, for messages.

    Raises:
        Refused: one of them does not.
        SinkError: the table is being changed right now.
    """
    for name, kind, persistence in found:
        if name is None:
            raise SinkError(f"{address}: {target} was dropped or changed meanwhile; nothing was written")
        if kind == "f":
            why = "is a foreign table: its server commits by itself, so a batch that is tried again may be there twice"
            remedy = "detach it, or write into its table on that server"
        elif persistence == "u":
            why = "is unlogged: a crash of the server empties it, also of committed batches"
            remedy = f"alter table {name} set logged"
        elif persistence == "t":
            why, remedy = "is temporary, so its rows go away with the session", "give a permanent table"
        else:
            why, remedy = "is neither a table nor a partition", "give the table that has the rows"
        part = f"table {name}" if name == str(target) else f"table {name}, of {target},"
        raise Refused(f"{address}: {part} {why}; nothing was written: {remedy}")


def columns_of(connection: Connection, relation: Relation) -> list[PostgreSQLColumn]:
    """Return the table's columns, in order."""
    return [PostgreSQLColumn(*row) for row in connection.execute(_COLUMNS, [relation.oid])]


def check_table(connection: Connection, target: Target, address: str) -> Relation:
    """Return the table after checks that need no frame: the user's permissions, the key.

    Raises:
        Refused: one of them is wrong; the message says how to correct it.
    """
    relation = find_table(connection, target, address)
    lacking = _lacking(relation, target, partial(quoted, connection))
    if lacking:
        raise Refused(f"{address}: user {relation.role} lacks permissions for {target}: {'; '.join(lacking)}")
    if target.key:
        check_key(connection, relation, columns_of(connection, relation), target, address)
    return relation


def check_key(
    connection: Connection, relation: Relation, columns: Sequence[PostgreSQLColumn], target: Target, address: str
) -> Mapping[str, sql.Composable]:
    """Return the collation of each text column of the key, after checks of the key; empty without a key.

    Raises:
        Refused: no unique index has these columns; or it takes different texts for one key, and that is not meant.
    """
    if not target.key:
        return {}
    found = connection.execute(_UNIQUE, [relation.oid]).fetchall()
    indexes = [list(zip(*index, strict=True)) for index in found if set(index[0]) == set(target.key)]
    if not indexes:
        raise no_unique_index(target, address, partial(quoted, connection))
    by_name = {column.name: column for column in columns}
    for name, _, _, deterministic, builtin in (part for index in indexes for part in index):
        why = _merges(by_name[name], nondeterministic=deterministic is False)
        if not builtin and not why:
            why = "has an operator class of its own in its index, for which different values may be one key"
        if why and not target.same_keys:
            raise merged_keys(target, by_name[name], why, "make it text, or a column of a deterministic collation")
    return {name: sql.Identifier(schema, collation) for name, schema, collation, *_ in indexes[0] if collation}


def quoted(connection: Connection, name: str) -> str:
    """Return a name as a statement needs it: in quotes only if it must have them."""
    [(text,)] = connection.execute("select quote_ident(%s)", [name]).fetchall()
    return str(text)


def _lacking(relation: Relation, target: Target, quoted: Callable[[str], str]) -> list[str]:
    upsert, table = target.mode == "upsert", target.quoted(quoted)
    needed = {
        f"grant insert on {table}": relation.insert,
        f"grant update on {table}": relation.update or not upsert,
        f"grant select on {table}": relation.select or not upsert,
        f"grant create on schema {quoted(relation.workplace or '')} (rows are staged there)": relation.create,
        "set a search_path with a schema in it (rows are staged there)": relation.workplace is not None,
    }
    return [remedy for remedy, there in needed.items() if there is False]
