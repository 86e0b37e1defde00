"""TensorBoard's event file, written: framed records (TFRecord), each an `Event` protocol buffer of named scalars.

    record = length (u64) | masked CRC-32C of it | bytes | masked CRC-32C of them          (all little-endian)
    Event  = 1: wall time (double)  2: step (int64)  3: "brain.Event:2"  5: Summary  7: SessionLog

Some forty lines instead of a dependency: `tensorboard` brings a server and gRPC, and torch's and tensorboardX's writers
load torch into the main process, which does without. Read back by the real `tensorboard` in the tests.
Knows no run.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

VERSION = b"brain.Event:2"


def _crc_table() -> tuple[int, ...]:
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0x82F63B78 if entry & 1 else 0)
        table.append(entry)
    return tuple(table)


_TABLE = _crc_table()


def masked_crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli) of the data, rotated and shifted as TFRecord wants it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field: a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _event(wall_time: float, step: int, content: bytes) -> bytes:
    return b"\x09" + struct.pack("<d", wall_time) + b"\x10" + _varint(step) + content


class EventFile:
    """One event file, made new. Whatever was written by `scalars` is in the file when the call returns."""

    def __init__(self, file: Path, wall_time: float) -> None:
        """Begins with a session start at step 0: a TensorBoard that is watching forgets what an older file said."""
        self._file: BinaryIO = file.open("wb", buffering=0)
        self._write(_event(wall_time, 0, _field(3, VERSION)))
        self._write(_event(wall_time, 0, _field(7, b"\x08\x01")))

    def scalars(self, step: int, wall_time: float, values: Mapping[str, float]) -> None:
        """Values by tag at this step; `wall_time` in seconds since 1970."""
        summary = b"".join(
            _field(1, _field(1, tag.encode()) + b"\x15" + struct.pack("<f", value)) for tag, value in values.items()
        )
        self._write(_event(wall_time, step, _field(5, summary)))

    def close(self) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        head = struct.pack("<Q", len(event))
        body = head + struct.pack("<I", masked_crc32c(head)) + event + struct.pack("<I", masked_crc32c(event))
        self._file.write(body)
