"""One end of a socket pair that carries msgpack frames: length (4 bytes, big endian), then the message.

Sending never blocks: what the peer does not take is kept and sent when it can. No pickle anywhere. *Last words*: all
that a peer said before it went is received, whatever became of what was sent to it; then it shows as `closed`.
"""

from __future__ import annotations

import socket
import struct
from typing import Any

import msgspec

_LENGTH = struct.Struct(">I")
_MOST = 1 << 30


class Channel:
    """Messages of one tagged union in each direction.

    `incoming` is the union's type. Raises msgspec.ValidationError for a frame that is not of that union.
    """

    def __init__(self, sock: socket.socket, incoming: Any) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.closed = False
        self._broken = False
        """The peer takes nothing any more; it may have said something before."""
        self._decoder = msgspec.msgpack.Decoder(incoming)
        self._encoder = msgspec.msgpack.Encoder()
        self._out = bytearray()
        self._in = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._out) and not self._broken and not self.closed

    def send(self, message: msgspec.Struct) -> None:
        self.send_encoded(self._encoder.encode(message))

    def send_encoded(self, body: bytes) -> None:
        self._out += _LENGTH.pack(len(body)) + body
        self.flush()

    def flush(self) -> None:
        """Send as much as the peer takes now."""
        while self.wants_to_write:
            try:
                sent = self.sock.send(memoryview(self._out)[: 1 << 20])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self._broken = True
                return
            del self._out[:sent]

    def receive(self) -> list[Any]:
        """All whole messages that have arrived; sets `closed` at the end of the stream."""
        while not self.closed:
            try:
                data = self.sock.recv(1 << 20)
            except BlockingIOError:
                break
            except ConnectionResetError:
                data = b""
            if not data:
                self.closed = True
            self._in += data
        return self._take_frames()

    def _take_frames(self) -> list[Any]:
        messages, at = [], 0
        while len(self._in) - at >= 4:
            (length,) = _LENGTH.unpack_from(self._in, at)
            if length > _MOST:
                raise msgspec.ValidationError(f"a frame of {length} bytes")
            if len(self._in) - at - 4 < length:
                break
            messages.append(self._decoder.decode(memoryview(self._in)[at + 4 : at + 4 + length]))
            at += 4 + length
        del self._in[:at]
        return messages

    def close(self) -> None:
        self.closed = True
        self.sock.close()
