"""HTTP/1.1 as the server takes it: heads are bounded, and what is no request is answered in the documented shape."""

import json
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES: Final = 64 * 1024


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
