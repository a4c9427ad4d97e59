from pathlib import Path

import pytest

from holdfast.config import load_settings
from holdfast.errors import BadSettings


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults():
    settings = load_settings()
    assert settings.store == "sqlite:///holdfast.db"
    assert (settings.lease_ttl_seconds, settings.lease_renew_seconds) == (10, 3)


def test_environment_wins_over_file_and_arguments_over_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "holdfast.toml").write_text('store = "sqlite:///file.db"\nmax_pending = 7\n')
    assert load_settings().store == "sqlite:///file.db"
    monkeypatch.setenv("HOLDFAST_STORE", "sqlite:///environment.db")
    assert load_settings().store == "sqlite:///environment.db"
    assert load_settings(store="sqlite:///argument.db").store == "sqlite:///argument.db"
    assert load_settings().max_pending == 7


@pytest.mark.parametrize(
    ("file", "complaint"),
    [
        ("stroe = 'x'", r"Unknown setting in holdfast\.toml: stroe\. Known settings: .*store"),
        ("max_pending = 0", r"HOLDFAST_MAX_PENDING in the environment, max_pending in holdfast\.toml"),
        ("max_pending = 'many'", "max_pending"),
        ("lease_ttl_seconds = -1", "lease_ttl_seconds"),
        ("lease_renew_seconds = 1e-9", "lease_renew_seconds"),
        ("stream_comment_seconds = 1e-9", "stream_comment_seconds"),
        ("lease_ttl_seconds = 4", "at least twice"),
        ("= 1", "TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, file: str, complaint: str):
    (tmp_path / "holdfast.toml").write_text(file)
    with pytest.raises(BadSettings, match=complaint):
        load_settings()


def test_a_typo_in_the_environment_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOLDFAST_MAX_PENDNG", "5")
    with pytest.raises(
        BadSettings,
        match=r"HOLDFAST_MAX_PENDNG, did you mean HOLDFAST_MAX_PENDING\? Known variables: .*HOLDFAST_PORT",
    ):
        load_settings()
