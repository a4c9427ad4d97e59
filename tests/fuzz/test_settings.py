"""Settings, policies, URLs and names of agents: read strictly, and refused with a word on what is wrong."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.config import PREFIX, Settings, load_settings
from holdfast.errors import BadSettings, HoldfastError
from holdfast.media import digest_of, open_media, to_uri
from holdfast.policy import RetentionPolicy
from holdfast.questions import parse_answers
from holdfast.runtime.agents import load_object
from holdfast.runtime.attachment import parse
from holdfast.store import open_store
from tests.fuzz.conftest import Opened
from tests.fuzz.values import FUZZ, JSON, TEXTS

NAMES = sorted(Settings.model_fields)
ENVIRONMENT = TEXTS.filter(lambda text: "\x00" not in text and "\ud800" not in text)


def read(given: Mapping[str, str]) -> Settings | None:
    """Read the settings of such an environment; None if they were refused as they should be."""
    before = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(PREFIX)}
    os.environ.update(given)
    try:
        return load_settings()
    except BadSettings as error:
        assert str(error)  # noqa: PT017 - that there is one is what the property says
        return None
    finally:
        for name in given:
            del os.environ[name]
        os.environ.update(before)


@FUZZ
@given(st.dictionaries(st.sampled_from(NAMES), ENVIRONMENT, max_size=3))
@example({"retention": "[" * 100_000})
@example({"retention": '{"a":' * 100_000})
def test_any_environment(given: dict[str, str]):
    read({PREFIX + name.upper(): value for name, value in given.items()})


POLICY = st.dictionaries(
    st.sampled_from([*RetentionPolicy.model_fields, "surprise"]),
    JSON | st.sampled_from(["clean", "archive", "erase", "*", 1, 30.5, True, {"a": 1}]),
    max_size=6,
)


@FUZZ
@given(st.lists(POLICY, max_size=3) | JSON)
def test_any_policies(given: Any):
    settings = read({"HOLDFAST_RETENTION": json.dumps(given)})
    for policy in () if settings is None else settings.retention:
        assert policy.hold or (policy.action and (policy.idle_days or policy.max_age_days))


@FUZZ
@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")))
@example(b"store = " + b"[" * 100_000)
@example(b"[[retention]]\nagent = 3\n")
@example(b"store = 1979-05-27\n")
def test_any_file(content: bytes):
    Path("holdfast.toml").write_bytes(content)
    read({})


@FUZZ
@given(st.sampled_from(["sqlite", "postgresql", "postgres", "mongodb", "", "s3"]), TEXTS, TEXTS)
def test_any_store_url(scheme: str, between: str, rest: str):
    for url in (f"{scheme}://{rest}", f"{scheme}{between}{rest}"):
        try:
            open_store(url)
        except HoldfastError:
            continue


@FUZZ
@given(st.sampled_from(["database", "disk", "s3", "gs", "az", "http"]), TEXTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_media_url(opened: Opened, scheme: str, rest: str):
    try:
        open_media(f"{scheme}://{rest}", store=opened.store)
    except HoldfastError:
        return


@FUZZ
@given(TEXTS | st.from_regex(r"media\+sha256://[0-9a-fA-F]{60,66}[\s#]?", fullmatch=True))
def test_any_media_uri(uri: str):
    try:
        digest = digest_of(uri)
    except HoldfastError:
        return
    assert to_uri(digest) == uri
    assert len(digest) == 64


@FUZZ
@given(TEXTS | st.tuples(TEXTS, TEXTS).map(":".join) | st.tuples(st.just("json"), TEXTS).map(":".join))
@example("json:decoder.JSONDecoder")
@example("json:")
@example("json.:x")
def test_any_name_of_an_agent(app: str):
    try:
        load_object(app)
    except HoldfastError:
        return


@FUZZ
@given(JSON)
def test_any_attachment(value: Any):
    try:
        found = parse(value)
    except HoldfastError:
        return
    assert found is None or 1 <= found.grace <= 86_400


@FUZZ
@given(st.dictionaries(st.sampled_from(["call_id", "digest", "approved", "answers", "arguments"]), JSON))
def test_any_answer(payload: dict[str, Any]):
    try:
        parse_answers(payload)
    except HoldfastError:
        return
