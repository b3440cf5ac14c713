"""The folder of a stream of pictures: predictions are appended batch by batch; a kill neither loses nor repeats any.

A journal has a line for every batch: its pictures, and the length of each table after it. The line is written last, so
a batch with a line is complete. From time to time, the state of the adapter is saved with its number of batches.

When a stream resumes, tables and journal are cut back to the saved state, and the pictures after it are predicted and
learnt from again. This needs these pictures. If some no longer exist, nothing complete is cut: every prediction stays,
and the adapter continues from the older state.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from testdg.errors import UserError
from testdg.files import csv_cell, replacing, writing
from testdg.runs.folder import CONFIG, STATE, Folder, damaged, read_config, reading
from testdg.runs.pictures import PredictedBatch
from testdg.runs.predictions import Prediction
from testdg.runs.session import Session
from testdg.runs.summary import Maps, SamplePictures, StreamStatistics

ROWS, SKIPPED, JOURNAL = "predictions.csv", "skipped.csv", ".batches.jsonl"
COLUMNS = (
    "index", "file", "class", "class_index", "confidence", "source_class", "source_class_index", "source_confidence",
    "differs", "change", "learnt", "reason",
)  # fmt: skip


class JournalEntry(TypedDict):
    """A batch: all its pictures, those that were skipped, and the length of each file after it, in bytes."""

    files: list[str]
    skipped: list[str]
    sizes: dict[str, int]


class ResumePoint(NamedTuple):
    """Where a stream resumes: pictures that are done, those to predict again, and the seconds that it took so far."""

    done: list[str]
    again: list[str]
    seconds: float


def _line(values: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


_HEADS = {ROWS: _line(COLUMNS), SKIPPED: _line(("index", "file", "reason")), JOURNAL: b""}


class PredictionFolder(Folder):
    """One stream on disk. `config` is everything that its predictions depend on, in plain values."""

    def __init__(self, path: Path, config: Mapping[str, Any], names: Sequence[str] = ()) -> None:
        super().__init__(path, config)
        self.files: dict[str, io.FileIO] = {}
        self.batches = self.resumed = 0  # resumed: predictions of earlier processes
        self.statistics = StreamStatistics()
        self.maps = Maps(path, names)
        self.samples = SamplePictures(path, self.maps)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Lock the folder, create or check it, and open its tables."""
        with super().open():
            try:
                with writing(self.path):
                    for name, head in _HEADS.items():
                        # unbuffered: data that a full disk refused must not be written later
                        self.files[name] = file = (self.path / name).open("ab", buffering=0)
                        _write(file, head if file.tell() == 0 else b"")
                yield
            finally:
                for file in self.files.values():
                    with suppress(OSError):  # it was reported already
                        file.close()

    def check_config(self) -> None:
        """Refuse the predictions of another model, method or stream, and tables without a configuration."""
        if not (self.path / CONFIG).exists():
            if any((self.path / name).exists() for name in (ROWS, JOURNAL)):
                message = f"{self.path / CONFIG} is missing next to {ROWS}: choose another --out, or delete {self.path}"
                raise UserError(message, code="damaged-folder")
            return
        found = read_config(self.path)
        for key in sorted({*found, *self.config}):
            if found.get(key) != self.config.get(key):
                difference = f"{key} was {found.get(key)!r}, and is {self.config.get(key)!r} now"
                message = f"{self.path} holds the predictions of another run ({difference}): choose another --out"
                raise UserError(message, code="other-run")

    # Resuming

    def resume(self, session: Session, exists: Callable[[str], bool]) -> ResumePoint:
        """Load the last saved state, cut off what was written after it, and return which pictures are done.

        `exists` says whether a picture can be read again; if one after the state cannot, only what the journal does not
        contain is cut off.
        """
        batches = self._journal()
        saved, seconds = len(batches), 0.0
        if session.adapter.learns:
            note = self.restore_state(session) or {}
            with reading(self.path, STATE):
                saved, seconds = int(note.get("batches", 0)), float(note.get("seconds", 0.0))
        if saved > len(batches):
            raise damaged(self.path, JOURNAL, f"{len(batches)} batches for a state of {saved}")
        late = [(file, file in one["skipped"]) for one in batches[saved:] for file in one["files"]]
        redo = all(skipped or exists(file) for file, skipped in late)
        batches = batches[:saved] if redo else batches
        sizes = batches[-1]["sizes"] if batches else {name: len(head) for name, head in _HEADS.items()}
        for name, table in self.files.items():
            if table.seek(0, io.SEEK_END) < sizes[name]:
                raise damaged(self.path, name, f"it has {table.tell()} bytes; {sizes[name]} were written")
            _truncate(table, sizes[name])
        self.batches = len(batches)
        for row in read_rows(self.path / ROWS):
            self.statistics.add(row)
        self.resumed = self.statistics.all.count
        self.statistics.skipped = sum(1 for _ in read_rows(self.path / SKIPPED))
        self.samples.load()
        done = [file for one in batches for file in one["files"]]
        return ResumePoint(done, [file for file, _ in late] if redo else [], seconds)

    def _journal(self) -> list[JournalEntry]:
        """Read the batches that were written completely; a last line without its end is ignored."""
        lines = (self.path / JOURNAL).read_bytes().split(b"\n")[:-1]
        with reading(self.path, JOURNAL):
            found: list[JournalEntry] = [json.loads(line) for line in lines]
            for one in found:
                one["files"], one["skipped"], one["sizes"][ROWS], one["sizes"][SKIPPED], one["sizes"][JOURNAL]
            return found

    # Writing

    def append(self, batch: PredictedBatch) -> None:
        """Append a batch: maps, rows, skipped pictures, and last its journal line. A failure cuts tables back."""
        for prediction in batch.predictions:
            self.maps.write(prediction)
        rows = [row_of(prediction) for prediction in batch.predictions]
        reasons = [[one.index, csv_cell(one.file), csv_cell(one.reason)] for one in batch.skipped]
        before = {name: file.tell() for name, file in self.files.items()}
        with self.writing():
            try:
                _write(self.files[ROWS], b"".join(_line([row[key] for key in COLUMNS]) for row in rows))
                _write(self.files[SKIPPED], b"".join(map(_line, reasons)))
                _write(self.files[JOURNAL], self._journal_line(batch))
            except BaseException:
                for name, size in before.items():
                    with suppress(OSError):  # `resume` cuts off the rest
                        _truncate(self.files[name], size)
                raise
        self.batches += 1
        for prediction, image, row in zip(batch.predictions, batch.images, rows, strict=True):
            self.samples.add(prediction, image)
            self.statistics.add(row)
        self.statistics.skipped += len(batch.skipped)

    def _journal_line(self, batch: PredictedBatch) -> bytes:
        """The journal line of a batch, padded, because it contains the length of the journal after it."""
        sizes = {name: self.files[name].tell() for name in (ROWS, SKIPPED)}
        entry = {"files": batch.files, "skipped": [one.file for one in batch.skipped]}
        blank = json.dumps({**entry, "sizes": {**sizes, JOURNAL: 10**15}}) + "\n"
        end = self.files[JOURNAL].tell() + len(blank)
        line = json.dumps({**entry, "sizes": {**sizes, JOURNAL: end}})
        return (line.ljust(len(blank) - 1) + "\n").encode()

    def save(self, session: Session, seconds: float) -> None:
        """Force all rows to disk, then save the state with its number of batches, and the sample pictures."""
        with self.writing():
            for file in self.files.values():
                os.fsync(file.fileno())
            if session.adapter.learns:
                session.online.save(self.path / STATE, {"seconds": seconds, "batches": self.batches})
        self.samples.save()


def row_of(prediction: Prediction) -> dict[str, str | int]:
    """A prediction as a row; names are escaped so that a spreadsheet does not read them as formulas."""
    return {
        "index": prediction.index,
        "file": csv_cell(prediction.file),
        "class": csv_cell(prediction.class_name),
        "class_index": prediction.class_index,
        "confidence": f"{prediction.confidence:.4f}",
        "source_class": csv_cell(prediction.source_class_name),
        "source_class_index": prediction.source_class_index,
        "source_confidence": f"{prediction.source_confidence:.4f}",
        "differs": f"{prediction.differs:.4g}",
        "change": int(prediction.change),
        "learnt": int(prediction.learnt),
        "reason": csv_cell(prediction.reason),
    }


def read_rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _write(file: io.FileIO, data: bytes) -> None:
    """Write all data; one call on an unbuffered file may write only a part."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _truncate(file: io.FileIO, size: int) -> None:
    file.truncate(size)
    file.seek(0, io.SEEK_END)


def require_pyarrow() -> Any:
    """Import pyarrow, or raise an error that says how to install it."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        message = "--format parquet needs pyarrow: pip install 'testdg[parquet]', or leave it out"
        raise UserError(message, code="not-installed") from error
    return pyarrow


def write_parquet(table: Path) -> Path:
    """Convert `predictions.csv` to Parquet next to it, in chunks; the file appears only when it is complete."""
    arrow, target = require_pyarrow(), table.with_suffix(".parquet")
    kinds = dict.fromkeys(COLUMNS, arrow.string())
    kinds |= dict.fromkeys(("index", "class_index", "source_class_index", "change", "learnt"), arrow.int64())
    kinds |= dict.fromkeys(("confidence", "source_confidence", "differs"), arrow.float64())
    options = arrow.csv.ConvertOptions(column_types=kinds, strings_can_be_null=False)
    lines = arrow.csv.ParseOptions(newlines_in_values=False)
    with writing(table.parent), replacing(target) as fresh, table.open("rb") as file:
        reader = arrow.csv.open_csv(file, convert_options=options, parse_options=lines)
        with arrow.parquet.ParquetWriter(str(fresh), reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    return target
