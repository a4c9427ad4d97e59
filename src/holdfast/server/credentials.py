"""The routes of a session's credentials. Values can be set, but not read."""

from typing import Annotated

from fastapi import Path, Request, Response

from holdfast.api.models import CredentialInfo, ErrorBody, Id, Items, NewCredential
from holdfast.runtime.credentials import Credentials
from holdfast.server.routes import new_router, route, store_of
from holdfast.server.sessions import SessionId

router = new_router("credentials")
Name = Annotated[Id, Path(description="Name of the credential.")]


@route(
    router,
    "PUT",
    "/api/sessions/{session_id}/credentials/{name}",
    "write",
    status_code=204,
    response_class=Response,
    responses={501: {"model": ErrorBody, "description": "The server has no `credential_key`."}},
)
async def set_credential(
    request: Request, session_id: SessionId, name: Name, body: NewCredential
) -> Response:
    """Store a credential for the tools of a session, sealed. Replaces the credential of that name."""
    key = request.app.state.settings.credential_key
    credentials = Credentials(store_of(request), None if key is None else key.get_secret_value())
    await credentials.set(session_id, name, body.value.get_secret_value(), ttl=body.ttl)
    return Response(status_code=204)


@route(router, "GET", "/api/sessions/{session_id}/credentials", "read")
async def list_credentials(request: Request, session_id: SessionId) -> Items[CredentialInfo]:
    """List the names of a session's credentials and when they expire. Values cannot be read."""
    credentials = await store_of(request).credentials(session_id)
    return Items(items=[CredentialInfo.of(credential) for credential in credentials])


@route(
    router,
    "DELETE",
    "/api/sessions/{session_id}/credentials/{name}",
    "write",
    status_code=204,
    response_class=Response,
)
async def delete_credential(request: Request, session_id: SessionId, name: Name) -> Response:
    """Delete a credential. If there is none, nothing changes."""
    await store_of(request).set_credential(session_id, name, None)
    return Response(status_code=204)
