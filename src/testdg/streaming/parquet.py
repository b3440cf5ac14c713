"""`predictions.csv` as Parquet, where pyarrow is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testdg.errors import UserError
from testdg.files import replacing, writing

_NUMBERS = {
    "int64": ("index", "class_index", "source_class_index", "change", "learnt"),
    "float64": ("confidence", "source_confidence", "differs"),
}
_TEXTS = ("file", "class", "source_class", "reason")


def require_pyarrow() -> Any:
    """The library, or the sentence that says how to get it."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("--format parquet needs pyarrow: pip install 'testdg[parquet]', or leave it out") from error
    return pyarrow


def write_parquet(table: Path) -> Path:
    """Write a table beside itself as Parquet, part by part, in one step."""
    arrow, target = require_pyarrow(), table.with_suffix(".parquet")
    kinds = {name: getattr(arrow, kind)() for kind, names in _NUMBERS.items() for name in names}
    kinds |= {name: arrow.string() for name in _TEXTS}
    options = arrow.csv.ConvertOptions(column_types=kinds, strings_can_be_null=False)
    lines = arrow.csv.ParseOptions(newlines_in_values=False)
    with writing(table.parent), replacing(target) as fresh, table.open("rb") as file:
        reader = arrow.csv.open_csv(file, convert_options=options, parse_options=lines)
        with arrow.parquet.ParquetWriter(str(fresh), reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    return target
