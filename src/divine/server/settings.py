"""How a server is set up: where it listens, whom it serves, and how much it takes on.

Checked when made; knows no sockets and no web framework.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from divine.checks import check_integer, check_number
from divine.errors import UsageError

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Settings:
    """What `divine serve` may be told.

    host, port        where to listen; port 0 is any free one
    api_keys          one of them must come with each request; () lets everybody in
    alias             names of the model for clients; () is the name of its file
    parallel          answers generated in shared passes at once
    queue             requests that may wait beyond those; more are answered with 429
    timeout           seconds that a request may take in all
    grace             seconds that running requests get after SIGTERM
    cors              origins whose pages may call the server ("*" for all); () for none
    body_limit        bytes of a request's body
    header_seconds    within which a request's headers must have come
    body_seconds      within which its body must have come
    write_seconds     that a client may take to accept what is written to it
    log_requests      write a line for each request to standard error

    Raises UsageError naming the option, what was found and what is allowed.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    alias: tuple[str, ...] = ()
    parallel: int = 4
    queue: int = 64
    timeout: float = 600.0
    grace: float = 10.0
    cors: tuple[str, ...] = ()
    body_limit: int = 8 * MEBIBYTE
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    write_seconds: float = 30.0
    log_requests: bool = False

    def __post_init__(self) -> None:
        check_integer("--port", self.port, 0, 65535)
        check_integer("--parallel", self.parallel, 1, 256)
        check_integer("--queue", self.queue, 0, 65536)
        check_number("--timeout", self.timeout, 0.01, 86400)
        check_number("--grace", self.grace, 0, 3600)
        if not self.host:
            raise UsageError("--host is empty; allowed is an address or a name of this computer")
        for key in self.api_keys:
            if not key or not key.isascii() or not key.isprintable() or key != key.strip():
                raise UsageError(
                    "an API key is empty or has characters that no HTTP header may have; allowed "
                    "are printable ASCII characters"
                )
        if any(not name or not name.isprintable() for name in self.alias):
            raise UsageError("--alias is empty or not printable; allowed are names with commas")
        for origin in self.cors:
            if origin != "*" and (
                not origin.startswith(("http://", "https://")) or origin.count("/") != 2
            ):
                raise UsageError(
                    f"--cors is {origin!r}; allowed is an origin, as http://localhost:3000, or *"
                )

    @property
    def loopback(self) -> bool:
        """Whether only programs on this computer can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def capacity(self) -> int:
        """Requests that may be open at once, running and waiting."""
        return self.parallel + self.queue
