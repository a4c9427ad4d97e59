"""The stock Python client of Durable Streams. Prints the kinds of the events that it reads, from the start and live, as JSON.

It runs in an environment of its own: python durable_streams_client.py URL TOKEN
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import asyncio
import json
import sys

import httpx
from durable_streams import astream

SESSION = "stock-stream"


async def main(url: str, token: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    address = f"{url}/api/streams/{SESSION}"
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=60) as http:

        async def send(text: str) -> None:
            message = {"id": text, "role": "user", "parts": [{"type": "text", "text": text}]}
            (await http.post("/api/chat", json={"id": SESSION, "messages": [message]})).raise_for_status()

        await send("say hello")
        async with astream(address, headers=headers, live=False) as response:
            told = {"whole": [event["kind"] for event in await response.read_json()]}
        for live in ("long-poll", "sse"):
            there = (await http.get(f"/api/sessions/{SESSION}")).json()["seq"]
            kinds: list[str] = []
            sending = None
            async with astream(address, headers=headers, offset="-1", live=live) as response:
                async for event in response.iter_json():
                    kinds.append(event["kind"])
                    if sending is None and len(kinds) == there:  # it has all, and waits for more
                        sending = asyncio.create_task(send(f"say more {live}"))
                    if sending is not None and event["kind"] == "submission_done" and len(kinds) > there:
                        break
            assert sending is not None
            await sending
            told[live] = kinds
    print(json.dumps(told))


asyncio.run(main(*sys.argv[1:]))
