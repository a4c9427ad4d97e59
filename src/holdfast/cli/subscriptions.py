"""`holdfast subscription`: notices of events that are sent to webhooks."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from rich.text import Text

from holdfast.cli.help import Commands
from holdfast.cli.options import AsJson, ServerUrl, StoreUrl, connected
from holdfast.cli.terminal import TextTable, echo, new_console, one_line, print_json, record, time_text
from holdfast.ids import check_choice
from holdfast.subscriptions import DELIVERY_STATES, NOTICE_KINDS, DeliveryState, NoticeKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from holdfast.api.subscriptions import DeliveryInfo, SubscriptionInfo, SubscriptionSecret
    from holdfast.client import SubscriptionHandle

app = Commands("Send notices of events to webhooks.")
_SAVE_IT: Final = "Save the secret: it is not shown again."
SubscriptionId = Annotated[str, typer.Argument(help="Id of the subscription.")]
Kinds = typer.Option("--kind", metavar="KIND", help=f"{', '.join(NOTICE_KINDS)}; repeatable.")
Agents = typer.Option("--agent", metavar="NAME", help="Only sessions of this agent; repeatable.")
Sessions = typer.Option("--session", metavar="ID", help="Only this session; repeatable.")


@app.command("create")
def create(
    webhook: Annotated[str, typer.Argument(metavar="URL", help="The https URL of the webhook.")],
    kinds: Annotated[list[str], Kinds],
    agents: Annotated[list[str] | None, Agents] = None,
    sessions: Annotated[list[str] | None, Sessions] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Include titles, questions, output and reasons of failures.")
    ] = False,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="The sessions of all owners, for administrators.")
    ] = False,
    owner: Annotated[
        str | None, typer.Option(help="Owner of the subscription, for administrators. Default: yourself.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a subscription.

    A worker sends a signed request to the webhook for each event. Prints the secret to verify them with, which is not shown again.

    Examples:
        holdfast subscription create https://example.com/holdfast --kind waiting --kind failed
        holdfast subscription create https://ops.example.com --kind worker_lost --kind given_up --everyone
    """

    async def work() -> "SubscriptionSecret":
        async with connected(store, url) as client:
            return await client.create_subscription(
                webhook,
                _kinds(kinds),
                agents=agents or (),
                sessions=sessions or (),
                content=content,
                everyone=everyone,
                owner=owner,
            )

    _print(asyncio.run(work()), _SAVE_IT, as_json=as_json)


@app.command("list")
def list_(
    owner: Annotated[
        str | None, typer.Option(help="Only subscriptions of this owner, for administrators.")
    ] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List subscriptions.

    Examples:
        holdfast subscription list
        holdfast subscription list --json
    """

    async def work() -> "list[SubscriptionInfo]":
        async with connected(store, url) as client:
            return [each async for each in client.subscriptions(owner=owner)]

    found = asyncio.run(work())
    if as_json:
        print_json({"subscriptions": [record(each) for each in found]})
        return
    if not found:
        echo("There are no subscriptions.")
        return
    table = TextTable("id", "kinds", "url", "state", "owner")
    for each in found:
        table.add_row(
            one_line(each.id), ", ".join(each.kinds), one_line(each.url), _state(each), one_line(each.owner)
        )
    new_console().print(table)


@app.command()
def show(
    subscription_id: SubscriptionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Show a subscription, without its secret.

    Examples:
        holdfast subscription show 0190f7c4
    """
    _print(_call(subscription_id, lambda each: each.info(), store, url), as_json=as_json)


@app.command()
def change(
    subscription_id: SubscriptionId,
    webhook: Annotated[str | None, typer.Option(metavar="URL", help="A new webhook.")] = None,
    kinds: Annotated[list[str] | None, Kinds] = None,
    agents: Annotated[list[str] | None, Agents] = None,
    sessions: Annotated[list[str] | None, Sessions] = None,
    content: Annotated[bool | None, typer.Option("--content/--no-content", help="Include texts.")] = None,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change a subscription.

    Other values stay as they are.

    Examples:
        holdfast subscription change 0190f7c4 --kind waiting --kind done
    """
    changed = _call(
        subscription_id,
        lambda each: each.change(
            url=webhook,
            kinds=_kinds(kinds) if kinds else None,
            agents=agents or None,
            sessions=sessions or None,
            content=content,
        ),
        store,
        url,
    )
    _print(changed, as_json=as_json)


@app.command()
def pause(
    subscription_id: SubscriptionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Pause a subscription.

    Nothing is sent, and new events are not announced.

    Examples:
        holdfast subscription pause 0190f7c4
    """
    _print(_call(subscription_id, lambda each: each.pause(), store, url), as_json=as_json)


@app.command()
def resume(
    subscription_id: SubscriptionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Resume a subscription.

    Its pending deliveries are sent now. Events during the pause are not announced.

    Examples:
        holdfast subscription resume 0190f7c4
    """
    _print(_call(subscription_id, lambda each: each.resume(), store, url), as_json=as_json)


@app.command()
def rotate(
    subscription_id: SubscriptionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Replace the secret of a subscription.

    Prints the new one, which is not shown again. For a day, deliveries are signed with both.

    Examples:
        holdfast subscription rotate 0190f7c4
    """
    rotated = _call(subscription_id, lambda each: each.rotate_secret(), store, url)
    _print(rotated, f"{_SAVE_IT} The previous secret works for another day.", as_json=as_json)


@app.command("test")
def send_test(
    subscription_id: SubscriptionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Send a test notice.

    A worker delivers it. `holdfast subscription deliveries` shows the result.

    Examples:
        holdfast subscription test 0190f7c4
    """
    sent = _call(subscription_id, lambda each: each.test(), store, url)
    _print_delivery(sent, "pending", as_json=as_json)


@app.command()
def delete(
    subscription_id: SubscriptionId, store: StoreUrl = None, url: ServerUrl = None, as_json: AsJson = False
) -> None:
    """Delete a subscription with its deliveries.

    Examples:
        holdfast subscription delete 0190f7c4
    """
    _call(subscription_id, lambda each: each.delete(), store, url)
    if as_json:
        print_json({"id": subscription_id, "done": "deleted"})
    else:
        echo(f"Subscription {subscription_id} is deleted.")


@app.command()
def deliveries(
    subscription_id: SubscriptionId,
    state: Annotated[
        str | None, typer.Option(metavar="STATE", help="Only pending, delivered or undeliverable ones.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Number of deliveries.")] = 50,
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """List the deliveries of a subscription, latest first.

    Those that ended more than two weeks ago are deleted. A pending one has the time of its next attempt.

    Examples:
        holdfast subscription deliveries 0190f7c4
        holdfast subscription deliveries 0190f7c4 --state undeliverable --json
    """
    if state is not None:
        check_choice(state, DELIVERY_STATES, "value for --state")

    async def work(subscription: "SubscriptionHandle") -> "list[DeliveryInfo]":
        found: list[DeliveryInfo] = []
        async for each in subscription.deliveries(state=cast("DeliveryState | None", state)):
            found.append(each)
            if len(found) == limit:
                break
        return found

    async def read(subscription: "SubscriptionHandle") -> "tuple[list[DeliveryInfo], bool]":
        found = await work(subscription)
        waits = not as_json and any(each.state == "pending" for each in found)
        return found, waits and (await subscription.info()).paused

    found, paused = cast("tuple[list[DeliveryInfo], bool]", _call(subscription_id, read, store, url))
    if as_json:
        print_json({"deliveries": [record(each) for each in found]})
        return
    if not found:
        echo("There are no deliveries.")
        return
    table = TextTable("id", "time", "kind", "session", "state", "attempts", "next attempt", "result")
    for each in found:
        table.add_row(
            one_line(each.id),
            time_text(each.at),
            each.kind,
            one_line(each.session_id or "-"),
            each.state,
            str(each.attempts),
            _next_attempt(each, paused=paused),
            one_line(each.result or "-"),
        )
    new_console().print(table)


@app.command()
def repeat(
    subscription_id: SubscriptionId,
    delivery_id: Annotated[str, typer.Argument(help="Id of the delivery.")],
    store: StoreUrl = None,
    url: ServerUrl = None,
    as_json: AsJson = False,
) -> None:
    """Send a delivery again that has ended, or a pending one now.

    A pending one does not wait for the time of its next attempt, nor for an earlier one of its session.

    Examples:
        holdfast subscription repeat 0190f7c4 0190f7d2
    """
    repeated = _call(subscription_id, lambda each: each.repeat(delivery_id), store, url)
    _print_delivery(repeated, "sent again now", as_json=as_json)


def _kinds(given: "Sequence[str]") -> list[NoticeKind]:
    for kind in given:
        check_choice(kind, NOTICE_KINDS, "value for --kind")
    return [cast("NoticeKind", kind) for kind in given]


def _call(
    subscription_id: str,
    work: "Callable[[SubscriptionHandle], Awaitable[Any]]",
    store: str | None,
    url: str | None,
) -> Any:
    async def call() -> Any:
        async with connected(store, url) as client:
            return await work(client.subscription(subscription_id))

    return asyncio.run(call())


def _next_attempt(delivery: "DeliveryInfo", *, paused: bool) -> Text:
    """Return when a delivery is sent next. One without a time waits for an earlier one of its session."""
    if delivery.state != "pending":
        return Text("-")
    if paused:
        return Text("after the pause")
    return Text("after the previous one") if delivery.due_at is None else time_text(delivery.due_at)


def _state(subscription: "SubscriptionInfo") -> str:
    return "paused" if subscription.paused else "failing" if subscription.problem else "active"


def _print(subscription: "SubscriptionInfo", note: str = "", *, as_json: bool) -> None:
    if as_json:
        print_json({"subscription": record(subscription)})
        return
    secret = getattr(subscription, "secret", None)
    lines: list[tuple[str, str | Text]] = [
        ("subscription", one_line(subscription.id)),
        ("url", one_line(subscription.url)),
        ("kinds", ", ".join(subscription.kinds)),
        ("agents", one_line(", ".join(subscription.agents) or "all")),
        ("sessions", one_line(", ".join(subscription.sessions) or "all")),
        ("owner", "everyone" if subscription.everyone else one_line(subscription.owner)),
        ("content", "yes" if subscription.content else "no"),
        ("state", _state(subscription)),
        *([("problem", one_line(subscription.problem))] if subscription.problem else []),
        *([("secret", secret)] if secret else []),
    ]
    console = new_console()
    for name, text in lines:
        console.print(
            Text(f"{name:<13} ").append_text(Text(text) if isinstance(text, str) else text), soft_wrap=True
        )
    if note:
        echo(note)


def _print_delivery(delivery: "DeliveryInfo", state: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"delivery": record(delivery)})
    else:
        echo(f"delivery {delivery.id} is {state}")
