"""Where a server listens and the key that is asked for there. Checked before anything large is loaded.

Safe by default: loopback alone unless there is a key, and an address that is taken is one line.
"""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from offbeat.errors import SettingsError


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    key: str

    def check(self) -> None:
        """Raises SettingsError for an address that others can reach while nobody needs a key."""
        if not self.key and not _is_loopback(self.host):
            raise SettingsError(
                f"--host {self.host}: can be reached from other machines, which needs a key; give one with --key-file"
                " or OFFBEAT_API_KEY"
            )

    def bind(self) -> socket.socket:
        """Raises SettingsError for an address that cannot be had."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((self.host, self.port))
            sock.listen(2048)
        except (OSError, OverflowError, TypeError) as error:  # TypeError: of a name that cannot be encoded
            sock.close()
            by_port = getattr(error, "errno", None) in (errno.EADDRINUSE, errno.EACCES)
            remedy = "choose another port (0: any that is free)" if by_port else "give an address of this machine"
            raise SettingsError(
                f"--host {self.host} --port {self.port}: cannot be listened at"
                f" ({getattr(error, 'strerror', None) or error}); {remedy}"
            ) from None
        return sock


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(file: Path) -> str:
    """Raises SettingsError for a file that holds no usable key."""
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise SettingsError(f"--key-file {file}: cannot be read ({reason}); give a file that holds one key") from None
    return check_key(key, f"--key-file {file}")


def check_key(key: str, where: str) -> str:
    """Raises SettingsError for a key that cannot travel in a header."""
    if not key.isascii() or not key.isprintable() or " " in key or len(key) < 8:
        raise SettingsError(f"{where}: not a usable key; use 8 printable ASCII characters or more, without spaces")
    return key
