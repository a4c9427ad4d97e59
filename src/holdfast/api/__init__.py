"""The request and response bodies of the HTTP API, which the server and the client share."""
