"""Policies are read strictly: what is unknown, ambiguous or left open stops the start and deletes nothing."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.config import load_settings
from holdfast.errors import BadSettings
from holdfast.policy import RetentionPolicy, match_policy

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_off_unless_configured():
    assert load_settings().retention == ()
    assert load_settings().submission_retention_seconds is None


def test_the_file_and_the_environment_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "holdfast.toml").write_text(
        '[[retention]]\nname = "legal"\nagent = "*"\nmetadata = { case = 7 }\nhold = true\n'
        '[[retention]]\nagent = "support"\nidle_days = 30\nmax_age_days = 365.5\naction = "archive"\n'
        "keep_last_runs = 100\n"
    )
    found = load_settings().retention
    assert found == (
        RetentionPolicy(name="legal", agent="*", metadata={"case": 7}, hold=True),
        RetentionPolicy(
            agent="support", idle_days=30, max_age_days=365.5, action="archive", keep_last_runs=100
        ),
    )
    (tmp_path / "holdfast.toml").unlink()
    monkeypatch.setenv(
        "HOLDFAST_RETENTION", json.dumps([policy.model_dump(exclude_unset=True) for policy in found])
    )
    assert load_settings().retention == found


GOOD = {"agent": "support", "idle_days": 30, "action": "clean"}


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({**GOOD, "idle_dyas": 3}, r"retention.*\[0\]\.idle_dyas: Extra inputs.*valid fields: .*idle_days"),
        ({**GOOD, "agnet": "x"}, "agnet"),
        ({**GOOD, "hold": "no"}, r"\[0\]\.hold: Input should be a valid boolean"),
        ({**GOOD, "hold": 0}, "hold"),
        (
            {**GOOD, "hold": True},
            "hold keeps its sessions indefinitely, so it cannot be combined with action, idle_days",
        ),
        ({**GOOD, "idle_days": "30"}, "idle_days"),
        ({**GOOD, "idle_days": True}, "idle_days"),
        ({**GOOD, "idle_days": 0}, "idle_days: Input should be greater than 0"),
        ({**GOOD, "idle_days": -1}, "idle_days"),
        ({**GOOD, "max_age_days": 1e9}, "max_age_days"),
        ({**GOOD, "keep_last_runs": 0}, "keep_last_runs"),
        ({**GOOD, "keep_last_runs": 1.5}, "keep_last_runs"),
        ({**GOOD, "action": "delete"}, "'clean', 'archive' or 'erase'"),
        ({**GOOD, "metadata": {}}, "metadata"),
        ({**GOOD, "metadata": {"a": None}}, "metadata"),
        ({"idle_days": 30, "action": "clean"}, "it matches no sessions"),
        ({"agent": "support", "idle_days": 30}, "it has no action"),
        ({"agent": "support", "action": "clean"}, "it has no time limit"),
        ({"agent": "support", "hold": False}, "it has no action"),
    ],
)
def test_a_mistake_stops_the_start(monkeypatch: pytest.MonkeyPatch, given: object, complaint: str):
    monkeypatch.setenv("HOLDFAST_RETENTION", json.dumps([given]))
    with pytest.raises(BadSettings, match=complaint):
        load_settings()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "retention"),
        ("yes", "retention"),
        ("{}", "must be a list"),
        ("[{}", "retention"),
        ('["support"]', "retention"),
        ('[{"agent": "a", "action": "clean", "idle_days": 30, "idle_days": 3}]', "a key is duplicated"),
        ('[{"agent": "a", "action": "clean", "idle_days": NaN}]', "idle_days"),
    ],
)
def test_what_is_no_list_of_policies_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, complaint: str):
    monkeypatch.setenv("HOLDFAST_RETENTION", text)
    with pytest.raises(BadSettings, match=complaint):
        load_settings()


@pytest.mark.parametrize(
    ("policies", "complaint"),
    [
        ([{**GOOD, "name": "x"}, {**GOOD, "agent": "b", "name": "x"}], "two policies are named x"),
        ([{**GOOD, "agent": "*"}, GOOD], r"retention\[1\] can never apply: retention\[0\] comes first"),
        ([{**GOOD, "metadata": {"a": 1}}, {**GOOD, "metadata": {"a": 1, "b": 2}}], "can never apply"),
    ],
)
def test_policies_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, policies: object, complaint: str
):
    monkeypatch.setenv("HOLDFAST_RETENTION", json.dumps(policies))
    with pytest.raises(BadSettings, match=complaint):
        load_settings()


def test_the_first_that_matches_applies():
    policies = [
        RetentionPolicy(name="case", metadata={"case": 1}, hold=True),
        RetentionPolicy(
            name="acme", agent="support", metadata={"tenant": "acme"}, idle_days=9, action="archive"
        ),
        RetentionPolicy(name="support", agent="support", idle_days=3, max_age_days=5, action="clean"),
    ]

    def of(agent: str, metadata: object, *, active: int = 0) -> tuple[str, datetime | None] | None:
        found = match_policy(
            policies,
            agent=agent,
            metadata=json.dumps(metadata),
            created_at=NOW,
            active_at=NOW + timedelta(days=active),
        )
        return None if found is None else (found.name, found.due_at)

    assert of("other", {}) is None
    assert of("other", []) is None
    assert of("other", {"case": 1}) == ("case", None)
    assert of("support", {"case": 1, "tenant": "acme"}) == ("case", None)
    assert of("other", {"case": True}) is None, "True is not 1 here"
    assert of("support", {"tenant": "acme", "more": 1}) == ("acme", NOW + timedelta(days=9))
    assert of("support", {"tenant": "Acme"}) == ("support", NOW + timedelta(days=3))
    assert of("support", {}, active=4) == ("support", NOW + timedelta(days=5)), "whichever comes first"
