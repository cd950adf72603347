"""TensorBoard event files, written directly: the usual writers take seconds to import and bring protobuf.

A file is a sequence of records: length (8 bytes), masked CRC of it, an Event message, masked CRC of that.
"""

import struct
import time
from collections.abc import Mapping
from pathlib import Path


class EventFile:
    """Scalars over env steps in one `events.out.tfevents.*` file."""

    def __init__(self, folder: Path, resumed_at: int | None = None) -> None:
        """Start a new file; `resumed_at` tells TensorBoard to drop points of earlier files beyond that step."""
        now = time.time()
        self._file = (folder / f"events.out.tfevents.{int(now * 1e6)}.hotloop").open("ab")
        self._record(_double(1, now) + _bytes(3, b"brain.Event:2"))
        if resumed_at is not None:
            start_of_session = _varint_field(1, 1)
            self._record(_double(1, now) + _varint_field(2, resumed_at + 1) + _bytes(7, start_of_session))
            self.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one value per tag at `step`."""
        summary = b"".join(
            _bytes(1, _bytes(1, tag.encode()) + _tag(2, 5) + struct.pack("<f", value)) for tag, value in values.items()
        )
        self._record(_double(1, time.time()) + _varint_field(2, step) + _bytes(5, summary))

    def flush(self) -> None:
        """Hand everything to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Finish the file."""
        self._file.close()

    def _record(self, event: bytes) -> None:
        length = struct.pack("<Q", len(event))
        self._file.write(length + _masked_crc(length) + event + _masked_crc(event))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _varint_field(field: int, number: int) -> bytes:
    return _tag(field, 0) + _varint(number)


def _double(field: int, value: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", value)


def _bytes(field: int, data: bytes) -> bytes:
    return _tag(field, 2) + _varint(len(data)) + data


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)  # Castagnoli polynomial, reflected
        table.append(byte)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
