"""Credentials of a session. Values can be set, but not read."""

from typing import Annotated

from pydantic import Field

from holdfast.api.models import CredentialInfo, ErrorBody, Id, Items, NewCredential
from holdfast.operations.access import Caller
from holdfast.operations.registry import ClientMethod, SessionId, operation
from holdfast.runtime.credentials import Credentials

Name = Annotated[Id, Field(description="Name of the credential.")]
_C = "/api/sessions/{session_id}/credentials"


@operation(
    "PUT",
    f"{_C}/{{name}}",
    "write",
    ClientMethod("SessionHandle.set_credential", "credentials set"),
    topic="credentials",
    status=204,
    responses={501: {"model": ErrorBody, "description": "The server has no `credential_key`."}},
)
async def set_credential(caller: Caller, session_id: SessionId, name: Name, body: NewCredential) -> None:
    """Store a credential for the tools of a session, sealed. Replaces the credential of that name."""
    key = caller.settings.credential_key
    credentials = Credentials(caller.store, None if key is None else key.get_secret_value())
    await credentials.set(session_id, name, body.value.get_secret_value(), ttl=body.ttl)


@operation(
    "GET", _C, "read", ClientMethod("SessionHandle.credentials", "credentials list"), topic="credentials"
)
async def list_credentials(caller: Caller, session_id: SessionId) -> Items[CredentialInfo]:
    """List the names of a session's credentials and when they expire. Values cannot be read."""
    credentials = await caller.store.credentials(session_id)
    return Items(items=[CredentialInfo.of(credential) for credential in credentials])


@operation(
    "DELETE",
    f"{_C}/{{name}}",
    "write",
    ClientMethod("SessionHandle.delete_credential", "credentials delete"),
    topic="credentials",
    status=204,
)
async def delete_credential(caller: Caller, session_id: SessionId, name: Name) -> None:
    """Delete a credential. If there is none, nothing changes."""
    await caller.store.set_credential(session_id, name, None)
