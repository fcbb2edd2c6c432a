"""The types of errors, from the texts that events keep of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as sql

if TYPE_CHECKING:
    from pyspark.sql import Column

#: The type of texts that name none.
OTHER = "other"
#: The bytes that an event keeps of an error: its end. A text of this size may have lost its beginning.
KEPT_BYTES = 1000
#: The longest line that is kept (characters).
LINE_LENGTH = 200

#: What a traceback of an exception group has at the beginning of its lines, and the lines between its parts.
_GROUP_MARKS = r"(?m)^ *(?:\| ?|\+[-+]+(?: \d+ -+)?$)"
#: The line after the last frame of a traceback; between them are lines of code and marks, which are indented.
_AFTER_LAST_FRAME = r'(?s)^.*(?:^|\n) *File "[^\n]*\n(?:[ \t][^\n]*\n)*([^\s\n][^\n]*)'
_FIRST_LINE, _LAST_LINE = r"^\s*([^\n]*)", r"([^\n]*)\s*$"
#: A name, such as that of a class with its module, that is the whole line or ends at a colon.
_NAME = r"^([A-Za-z_][\w.]*)(?=:\s|:?\s*$)"


def error_line(error: str) -> Column:
    """Return the line of an error that names it.

    Of a traceback this is the line of the exception that was raised last; of an exception group, that of its
    last exception; of another text, its first line.

    Args:
        error: The column of the text.
    """
    text = sql.regexp_replace(error, _GROUP_MARKS, "")
    after_frames = sql.regexp_extract(text, _AFTER_LAST_FRAME, 1)
    rest = sql.when(sql.octet_length(error) < KEPT_BYTES, sql.regexp_extract(text, _FIRST_LINE, 1)).otherwise(
        sql.concat(sql.lit("… "), sql.regexp_extract(text, _LAST_LINE, 1))
    )
    line = sql.when(after_frames != "", after_frames).otherwise(rest)
    return sql.left(line, sql.lit(LINE_LENGTH))


def error_type(line: str) -> Column:
    """Return the type of an error: `ValueError` of `ValueError: bad amount`, or `other` if it names none.

    Args:
        line: The column of what `error_line` returns.
    """
    name = sql.regexp_extract(line, _NAME, 1)
    return sql.when(name != "", name).otherwise(OTHER)
