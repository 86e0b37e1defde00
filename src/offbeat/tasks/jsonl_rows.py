"""Reads a file of {"prompt", "answer"[, "dataset"]} lines; every complaint names the line.

Invariant: the rows returned have different prompts, each with one non-empty answer. Other keys are ignored.
This file does not know rewards or the held-out split.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from offbeat.errors import TaskError


class Row(msgspec.Struct, frozen=True):
    prompt: str
    answer: str
    dataset: str = ""


def read_rows(file: Path) -> tuple[list[Row], int]:
    """The rows in file order without exact duplicates, and how many duplicates were dropped."""
    try:
        lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except FileNotFoundError:
        raise TaskError(f"task.file = {str(file)!r}: no such file; give a file of JSON lines") from None
    except OSError as error:
        raise TaskError(f"task.file = {str(file)!r}: cannot be read ({error.strerror}); give a readable file") from None
    rows: dict[str, tuple[int, Row]] = {}
    duplicates = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _row(file, number, line)
        first, known = rows.setdefault(row.prompt, (number, row))
        if known.answer != row.answer:
            raise TaskError(f"{file}: lines {first} and {number} give the same prompt different answers; keep one")
        duplicates += first != number
    if not rows:
        raise TaskError(f"task.file = {str(file)!r}: has no lines; give one JSON object a line")
    return [row for _, row in rows.values()], duplicates


def _row(file: Path, number: int, line: bytes) -> Row:
    try:
        row = msgspec.json.decode(line, type=Row)
        (row.prompt + row.answer + row.dataset).encode()
    except msgspec.ValidationError as error:
        raise TaskError(
            f'{file} line {number}: {error}; give {{"prompt": text, "answer": text}}, "dataset" being optional'
        ) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise TaskError(f"{file} line {number}: not a line of JSON ({error}); mend it") from None
    for key, text in (("prompt", row.prompt), ("answer", row.answer)):
        if not text.strip():
            raise TaskError(f"{file} line {number}: {key} is empty; fill it or remove the line")
    return row
