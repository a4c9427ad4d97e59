"""The models of subscriptions and their deliveries."""

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field, StrictBool

from holdfast.api.models import Id, Name, RequestBody, ResponseBody
from holdfast.subscriptions import MOST_NAMES, NOTICE_KINDS, DeliveryKind, DeliveryState, NoticeKind

_Url = Annotated[str, Field(min_length=1, max_length=2048, pattern=r"^[!-~]+$")]
_Secret = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]
_Kinds = Annotated[list[NoticeKind], Field(min_length=1, max_length=len(NOTICE_KINDS))]
_Agents = Annotated[list[Name], Field(max_length=MOST_NAMES)]
_Sessions = Annotated[list[Id], Field(max_length=MOST_NAMES)]
_URL = "The https URL of your webhook."
_KINDS = "The kinds of notices to send. `worker_lost` requires `everyone`."
_AGENTS = "Only sessions of these agents; by default of all."
_SESSIONS = "Only these sessions; by default all."
_CONTENT = (
    "Whether to include texts of the session: its title, questions, output and the reasons of failures."
)


class NewSubscription(RequestBody):
    """A subscription to create."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "https://example.com/holdfast", "kinds": ["waiting", "failed", "given_up"]}]
        }
    )
    url: _Url = Field(description=_URL)
    kinds: _Kinds = Field(description=_KINDS)
    agents: _Agents = Field([], description=_AGENTS)
    sessions: _Sessions = Field([], description=_SESSIONS)
    content: StrictBool = Field(False, description=_CONTENT)
    everyone: StrictBool = Field(
        False, description="Whether it applies to the sessions of all owners. For administrators."
    )
    secret: _Secret | None = Field(
        None,
        description="The secret that signs deliveries: whsec_ and 24 to 64 bytes in Base64. By default a new one is generated.",
    )
    owner: Name | None = Field(None, description="The owner, if not you. For administrators.")


class SubscriptionChange(RequestBody):
    """The changes to a subscription. Other fields stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"kinds": ["failed"], "paused": False}]})
    url: _Url | None = Field(None, description=_URL)
    kinds: _Kinds | None = Field(None, description=_KINDS)
    agents: _Agents | None = Field(None, description=_AGENTS)
    sessions: _Sessions | None = Field(None, description=_SESSIONS)
    content: StrictBool | None = Field(None, description=_CONTENT)
    paused: StrictBool | None = Field(
        None, description="Whether the subscription is paused. Events during the pause are not announced."
    )


class NewSecret(RequestBody):
    """A new secret for a subscription."""

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})
    secret: _Secret | None = Field(
        None,
        description="whsec_ and 24 to 64 bytes in Base64. By default a new one is generated.",
    )


class SubscriptionInfo(ResponseBody):
    """A subscription, without its secret."""

    id: str
    owner: str
    everyone: bool = Field(description="Whether it applies to the sessions of all owners.")
    url: str
    kinds: list[NoticeKind]
    agents: list[str]
    sessions: list[str]
    content: bool
    paused: bool
    problem: str | None = Field(
        description="The reason why the last deliveries failed; null if the last ones arrived."
    )
    created_at: datetime


class SubscriptionSecret(SubscriptionInfo):
    """A subscription with its secret, which is shown only now."""

    secret: str = Field(description="The secret to verify deliveries with.")


class DeliveryInfo(ResponseBody):
    """One notice for one subscription."""

    id: str = Field(description="The `webhook-id` of the request; the same for each attempt.")
    subscription_id: str
    session_id: str = Field(description="Empty if the notice is about no session.")
    seq: int = Field(description="The number of the event that it announces.")
    kind: DeliveryKind
    at: datetime = Field(description="The time of the event.")
    state: DeliveryState
    attempts: int
    result: str | None = Field(description="What happened in the last attempt.")
    due_at: datetime | None = Field(
        description="The time of the next attempt; null if there is none, or if an earlier delivery of the session comes first."
    )
    ended_at: datetime | None
