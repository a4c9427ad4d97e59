"""HTTP/1.1 as the server takes it: heads are bounded, and what is no request is answered in the documented shape."""

import json
import socket
from typing import Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES: Final = 64 * 1024
QUEUED_CONNECTIONS: Final = 2048


class Protocol(H11Protocol):
    """Uvicorn's, in pure Python: it bounds what a head may have, which the quicker one does not."""

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong, unless an answer is under way already, and hang up."""
        del msg
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            problem = f"This is no request, or its head has more than {MAX_HEAD_BYTES} bytes."
            body = json.dumps({"error": {"code": "bad_request", "message": problem}}).encode()
            head = [
                "HTTP/1.1 400 Bad Request",
                "content-type: application/json",
                f"content-length: {len(body)}",
                "x-content-type-options: nosniff",
                "connection: close",
            ]
            self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()


class Server(uvicorn.Server):
    """Accepts connections one by one.

    asyncio tries to accept as many at a time as the socket may queue. When no file descriptors are left it logs an error
    and starts a timer for each of them, which keeps the processor busy and fills the log.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve these sockets; each keeps a queue of its usual length."""
        self.config.backlog = 1
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(QUEUED_CONNECTIONS)
