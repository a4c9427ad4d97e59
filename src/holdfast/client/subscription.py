"""A handle on one subscription."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from holdfast.api.subscriptions import DeliveryInfo, SubscriptionInfo, SubscriptionSecret
from holdfast.client.transport import Transport
from holdfast.ids import check_id
from holdfast.subscriptions import DeliveryState, NoticeKind


class SubscriptionHandle:
    """One subscription: notices of events that are sent to a webhook."""

    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self._path = f"/api/subscriptions/{check_id(id, 'subscription id')}"
        self.id: str = id

    def __repr__(self) -> str:
        return f"SubscriptionHandle(id={self.id!r})"

    async def info(self) -> SubscriptionInfo:
        """Return the subscription as it is now, without its secret."""
        return await self._transport.call(SubscriptionInfo, "GET", self._path)

    async def change(
        self,
        *,
        url: str | None = None,
        kinds: Sequence[NoticeKind] | None = None,
        agents: Sequence[str] | None = None,
        sessions: Sequence[str] | None = None,
        content: bool | None = None,
    ) -> SubscriptionInfo:
        """Change the given values and leave the others unchanged."""
        lists = {"kinds": kinds, "agents": agents, "sessions": sessions}
        given = {name: None if names is None else list(names) for name, names in lists.items()}
        given |= {"url": url, "content": content}
        return await self._change({name: value for name, value in given.items() if value is not None})

    async def pause(self) -> SubscriptionInfo:
        """Pause the subscription: nothing is sent, and new events are not announced."""
        return await self._change({"paused": True})

    async def resume(self) -> SubscriptionInfo:
        """Resume the subscription. Pending deliveries are sent now; events during the pause are not announced."""
        return await self._change({"paused": False})

    async def rotate_secret(self, secret: str | None = None) -> SubscriptionSecret:
        """Replace the secret, by default with a new random one, and return it. For a day, deliveries are signed with both secrets."""
        body = {} if secret is None else {"secret": secret}
        return await self._transport.call(SubscriptionSecret, "POST", f"{self._path}/secret", json=body)

    async def test(self) -> DeliveryInfo:
        """Send a notice of the kind `test`. A worker delivers it; `deliveries` has the result."""
        return await self._transport.call(DeliveryInfo, "POST", f"{self._path}/test")

    async def delete(self) -> None:
        """Delete the subscription with its deliveries."""
        await self._transport.send("DELETE", self._path)

    def deliveries(self, *, state: DeliveryState | None = None) -> AsyncGenerator[DeliveryInfo, None]:
        """Yield the deliveries, latest first. Those that ended more than two weeks ago are deleted."""
        return self._transport.items(DeliveryInfo, f"{self._path}/deliveries", {"state": state})

    async def repeat(self, delivery_id: str) -> DeliveryInfo:
        """Send a delivery again that has ended, such as one that was undeliverable. A pending one is sent now, and keeps its attempts."""
        path = f"{self._path}/deliveries/{check_id(delivery_id, 'delivery id')}/repeat"
        return await self._transport.call(DeliveryInfo, "POST", path)

    async def _change(self, body: dict[str, Any]) -> SubscriptionInfo:
        return await self._transport.call(SubscriptionInfo, "PATCH", self._path, json=body)
