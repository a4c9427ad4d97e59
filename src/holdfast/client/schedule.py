"""A handle on one schedule."""

from datetime import datetime
from typing import Any

from holdfast.api.schedules import ScheduleInfo, ScheduleTimes
from holdfast.api.submissions import SubmissionInfo
from holdfast.client.output import OutputType
from holdfast.client.transport import Transport
from holdfast.client.turn import TurnHandle
from holdfast.ids import check_id
from holdfast.schedules import CatchUp, Overlap


class ScheduleHandle:
    """One schedule: a message that is submitted at each time of a cron expression."""

    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self._path = f"/api/schedules/{check_id(id, 'schedule id')}"
        self.id: str = id

    def __repr__(self) -> str:
        return f"ScheduleHandle(id={self.id!r})"

    async def info(self) -> ScheduleInfo:
        """Return the schedule as it is now, with its next tick and the outcome of the last one."""
        return await self._transport.call(ScheduleInfo, "GET", self._path)

    async def change(
        self,
        *,
        cron: str | None = None,
        timezone: str | None = None,
        text: str | None = None,
        title: str | None = None,
        overlap: Overlap | None = None,
        catch_up: CatchUp | None = None,
        catch_up_limit: int | None = None,
    ) -> ScheduleInfo:
        """Change the given values and leave the others unchanged. With new times, it continues with the first tick from now on."""
        given = {"cron": cron, "timezone": timezone, "text": text, "title": title, "overlap": overlap}
        given |= {"catch_up": catch_up, "catch_up_limit": catch_up_limit}
        return await self._change({name: value for name, value in given.items() if value is not None})

    async def pause(self) -> ScheduleInfo:
        """Pause the schedule: it submits nothing until it is resumed."""
        return await self._change({"paused": True})

    async def resume(self) -> ScheduleInfo:
        """Resume the schedule with the first tick from now on. Ticks during the pause are not made up for."""
        return await self._change({"paused": False})

    async def delete(self) -> None:
        """Delete the schedule with its text. The sessions and submissions that it created remain."""
        await self._transport.send("DELETE", self._path)

    async def run(self) -> TurnHandle[str]:
        """Submit the message now, even if the schedule is paused. Its ticks stay as they are.

        Raises `Conflict` if its last turn has not ended and `overlap` is `skip`.
        """
        accepted = await self._transport.call(SubmissionInfo, "POST", f"{self._path}/run")
        return TurnHandle(self._transport, accepted, OutputType(str).parse)

    async def times(self, count: int = 10) -> list[datetime]:
        """Return the next times, at most 100. If the schedule is paused, those that it would have if it were resumed now."""
        params = {"count": count}
        return (await self._transport.call(ScheduleTimes, "GET", f"{self._path}/times", params=params)).items

    async def _change(self, body: dict[str, Any]) -> ScheduleInfo:
        return await self._transport.call(ScheduleInfo, "PATCH", self._path, json=body)
