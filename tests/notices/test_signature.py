import base64
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from holdfast.errors import BadInput
from holdfast.notices.signature import new_secret, parse_secret, sign

BODY = '{"name": "Jürgen"}'.encode()


def encoded(size: int) -> str:
    return "whsec_" + base64.b64encode(b"k" * size).decode()


def signed(*secrets: str, id: str = "msg_1", body: bytes = BODY) -> dict[str, str]:
    return sign(id, int(time.time()), body, secrets)


def test_a_receiver_verifies_the_signature():
    secret = new_secret()
    assert Webhook(secret).verify(BODY, signed(secret)) == {"name": "Jürgen"}


def test_the_signature_covers_the_id_the_time_and_the_body():
    secret = new_secret()
    headers = signed(secret)
    later = {**headers, "webhook-timestamp": str(int(headers["webhook-timestamp"]) + 1)}
    for changed, body in (({**headers, "webhook-id": "msg_2"}, BODY), (later, BODY), (headers, BODY + b" ")):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, changed)


def test_during_a_rotation_both_secrets_verify():
    new, previous, other = new_secret(), new_secret(), new_secret()
    headers = signed(new, previous)
    assert len(headers["webhook-signature"].split(" ")) == 2
    for secret in (new, previous):
        Webhook(secret).verify(BODY, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(other).verify(BODY, headers)


def test_a_new_secret_is_random():
    secret = new_secret()
    assert len(parse_secret(secret)) == 32
    assert secret != new_secret()


@pytest.mark.parametrize("size", [24, 64])
def test_the_sizes_of_secrets(size: int):
    assert parse_secret(encoded(size)) == b"k" * size


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        encoded(23),
        encoded(65),
        encoded(32).removeprefix("whsec_"),
        encoded(32).rstrip("="),
        encoded(32).upper(),
        encoded(32) + "\n",
        encoded(32).replace("a", "-"),
        "whsec_" + "é" * 40,
        "whpk_" + encoded(32),
    ],
)
def test_secrets_of_another_form_are_refused_and_not_repeated(secret: str):
    with pytest.raises(BadInput, match="a webhook secret is `whsec_` and 24 to 64 random bytes") as refused:
        parse_secret(secret)
    assert secret.removeprefix("whsec_")[:8] not in str(refused.value) or len(secret) < 8
    with pytest.raises(BadInput):
        signed(new_secret(), secret)


def test_a_webhook_has_a_secret():
    with pytest.raises(BadInput, match="at least one secret"):
        signed()


@pytest.mark.parametrize("id", ["", "a.b", "a\r\nx: y", "ä", "x" * 129, "a b"])
def test_ids_that_a_header_or_the_signed_content_cannot_hold_are_refused(id: str):
    with pytest.raises(BadInput, match="webhook id"):
        signed(new_secret(), id=id)
