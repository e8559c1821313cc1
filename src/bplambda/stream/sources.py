"""Streams to learn from: two that are made up, and a person's own CSV, line by line."""

import csv
import math
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np

MEAN, DEVIATION = 0.930, 0.226  # of the Mackey-Glass series with τ = 17, in the long run
LARGEST = 1e100  # of a number in a CSV: its square is still one
FAR, EARLY = 10.0, 30  # numbers are clipped at FAR deviations from their mean, once EARLY of them have been seen


def echo(steps: int, delay: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs uniform in ±√3, of variance 1, and the inputs of `delay` steps ago, which are 0 at first.

    **Returns:** inputs and targets, `steps` numbers each. A longer stream begins as a shorter one does.
    """
    xs = np.random.default_rng(seed).uniform(-math.sqrt(3), math.sqrt(3), steps)
    return xs, np.concatenate([np.zeros(delay), xs])[:steps]


def mackey_glass(steps: int, seed: int = 0, tau: int = 17, spacing: int = 6, substeps: int = 10) -> np.ndarray:
    """The chaotic series of Mackey and Glass, dx/dt = 0.2 x(t−τ) / (1 + x(t−τ)¹⁰) − 0.1 x(t), of mean 0, variance 1.

    By the Runge-Kutta method of order 4, its step 1 / `substeps` of the unit of time; `spacing` units lie between two
    numbers of the series. The seed sets where it begins; what is not yet chaotic is left out.

    **Returns:** `steps` numbers. A longer series begins as a shorter one does.
    """
    delay, h, warmup = tau * substeps, 1 / substeps, 20 * tau * substeps
    wanted = warmup + (steps - 1) * spacing * substeps + 1
    history = [1.2 + 0.2 * float(np.random.default_rng(seed).uniform(-1, 1))] * (delay + 1)
    feedback = [_feedback(history[0])] * (delay + 1)  # of each x: it is needed only later
    for _ in range(wanted):
        x, before, after = history[-1], feedback[-1 - delay], feedback[-delay]
        between = (before + after) / 2
        k1 = before - 0.1 * x
        k2 = between - 0.1 * (x + h / 2 * k1)
        k3 = between - 0.1 * (x + h / 2 * k2)
        k4 = after - 0.1 * (x + h * k3)
        history.append(x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4))
        feedback.append(_feedback(history[-1]))
    series = np.array(history[delay + 1 + warmup :: spacing * substeps])
    return (series - MEAN) / DEVIATION


def _feedback(x: float) -> float:
    return 0.2 * x / (1 + x**10)


class Scale(NamedTuple):
    """The running mean and variance of each column (Welford), the target's last.

    One wrong number must not spoil what all others are measured by: none counts as further than 10 deviations from the
    mean. A column that has really moved there widens its deviation with every number, and is soon followed.
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray

    def add(self, values: np.ndarray) -> "Scale":
        """One more number of each column that has one."""
        count = self.count + np.isfinite(values)
        bound = np.where((self.count >= EARLY) & (self.deviation > 0), FAR * self.deviation, np.inf)
        off = np.clip(np.nan_to_num(values - self.mean), -bound, bound)
        step = off / np.maximum(count, 1)
        return Scale(count, self.mean + step, self.squares + off * (off - step))

    @property
    def deviation(self) -> np.ndarray:
        return np.sqrt(self.squares / np.maximum(self.count, 1))

    def standardised(self, values: np.ndarray) -> np.ndarray:
        """Of mean 0 and variance 1 so far; 0 where there is no number."""
        off = np.nan_to_num((values - self.mean) / np.where(self.deviation > 0, self.deviation, 1))
        return np.clip(off, -FAR, FAR).astype(np.float32)

    def target(self, prediction: Any) -> np.float64:
        """A standardised prediction, as the target is written."""
        return self.mean[-1] + self.deviation[-1] * np.float64(prediction[0])


class BadLine(ValueError):
    """A line that cannot be used; the message says which and why."""


class Row(NamedTuple):
    """The numbers of a line: the features, and the target, NaN where a cell is empty."""

    line: int
    features: np.ndarray
    target: float


class CsvStream:
    """A CSV, read no further than asked; each line is a record, and the first names the columns."""

    def __init__(
        self,
        file: BinaryIO,
        name: str,
        target: str,
        features: Sequence[str] = (),
        horizon: int = 0,
        delimiter: str = ",",
        *,
        gaps: bool = False,
        whole: bool = False,
    ):
        """**Arguments:**

        - `file`, `name`: to read from, and to call it by.
        - `target`, `features`: columns. Without features: all with a number in the first line that has any.
        - `horizon`: 0 if a line's target is to be predicted, 1 if the next line's is: then the line's own is a feature.
        - `delimiter`: one character.
        - `gaps`: whether features may be missing.
        - `whole`: leave a last line that has no end yet, for the next time.
        """
        self.file, self.name, self.delimiter, self.gaps, self.whole = file, name, delimiter, gaps, whole
        self.line, self.checksum, self.bad, self.unfinished = 0, 0, 0, False
        self._again: deque[bytes] = deque()  # lines that are to be read once more
        header = self._read()
        if not header.strip():
            raise ValueError(f"{name} is empty: its first line must name the columns.")
        if "\0" in header or "\ufffd" in header:
            raise ValueError(f"{name} is not a CSV in UTF-8: its first line is not text.")
        self.columns = [cell.strip() for cell in self._cells(header.removeprefix("\ufeff"))]
        there = f"the columns of {name} are {', '.join(self.columns)}"
        for column in (target, *features):
            if self.columns.count(column) != 1:
                problem = "is there more than once" if column in self.columns else "is not there"
                raise ValueError(f"The column {column!r} {problem}: {there}.")
        if target in features and horizon == 0:
            raise ValueError(f"features has the target, {target!r}: known before it is predicted only with horizon 1.")
        self.target, self.own = self.columns.index(target), horizon > 0
        self.features = [self.columns.index(column) for column in features]

    def __iter__(self) -> Iterator[Row | BadLine]:
        while line := self._read():
            if line.strip():
                try:
                    yield self._row(line)
                except BadLine as problem:
                    yield problem

    def go_on_after(self, line: int, checksum: int, first: int) -> bool:
        """Whether this is the stream, perhaps longer now, that was read up to `line` before; then goes on after it.

        **Arguments:** `line`; the `checksum` up to there; `first`, that up to the first row, which has just been read.
        If it is another one, nothing more is read, and whoever waits at a pipe's end does not wait long.
        """
        if self.checksum != first or not self.line <= line:
            return False
        here, is_file = (self.line, self.checksum), self.file.seekable()
        position, read = self.file.tell() if is_file else 0, deque()
        while self.line < line and (found := self._raw()):
            if not is_file:
                read.append(found)
        if (self.line, self.checksum) == (line, checksum):
            return True
        self.line, self.checksum = here
        if is_file:
            self.file.seek(position)
        self._again = read
        return False

    def _raw(self) -> bytes:
        line = self._again.popleft() if self._again else self.file.readline()
        if self.whole and not line.endswith(b"\n"):
            self.unfinished = bool(line)
            return b""
        if line:
            self.line, self.checksum = self.line + 1, zlib.crc32(line.rstrip(b"\r\n"), self.checksum)
        return line

    def _read(self) -> str:
        return self._raw().decode(errors="replace")

    def _cells(self, line: str) -> list[str]:
        try:
            return next(csv.reader([line.rstrip("\r\n")], delimiter=self.delimiter, strict=True))
        except csv.Error as error:
            raise BadLine(f"line {self.line}: {error}.") from None

    def _row(self, line: str) -> Row:
        cells = self._cells(line)
        if len(cells) != len(self.columns):
            raise BadLine(f"line {self.line}: {len(cells)} fields, but there are {len(self.columns)} columns.")
        target = math.nan if self._is_empty(cells[self.target]) else self._number(cells, self.target)
        features = self.features or self._numeric(cells)
        row = Row(self.line, np.array([self._feature(cells, i) for i in features]), target)
        self.features = features
        return row

    def _feature(self, cells: list[str], i: int) -> float:
        may_be_empty = self.gaps or i == self.target
        return math.nan if may_be_empty and self._is_empty(cells[i]) else self._number(cells, i)

    def _is_empty(self, cell: str) -> bool:
        return not cell.strip() or (self.gaps and cell.strip().lower() == "nan")

    def _number(self, cells: list[str], i: int) -> float:
        try:
            value = float(cells[i])
        except ValueError:
            value = math.nan
        if not abs(value) < LARGEST:
            raise BadLine(f"line {self.line}: {self.columns[i]} is {cells[i]!r}, but must be a number.")
        return value

    def _numeric(self, cells: list[str]) -> list[int]:
        """The columns with a number in this line."""
        found = []
        for i in range(len(cells)):
            try:
                self._number(cells, i)
            except BadLine:
                continue
            found.append(i)
        found = [i for i in found if i != self.target or self.own]
        if not found:
            raise BadLine(f"line {self.line}: no number in any column but the target's.")
        return found
