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


@pytest.mark.parametrize(
    ("networks", "complaint"),
    [
        (
            "localhost",
            "'localhost' is not a network. Use an address with a prefix length, such as 10.0.0.0/8",
        ),
        ("10.0.0.0/8, 127.0.0.1/8", "'127.0.0.1/8' has host bits set. Use 127.0.0.0/8."),
        ("fd00::1/8", "'fd00::1/8' has host bits set. Use fd00::/8."),
        ("10.0.0.0/33", "'10.0.0.0/33' is not a network"),
    ],
)
def test_a_bad_network_is_named_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, networks: str, complaint: str
):
    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", networks)
    with pytest.raises(BadSettings) as refused:
        load_settings()
    where = (
        "webhook_networks (HOLDFAST_WEBHOOK_NETWORKS in the environment, webhook_networks in holdfast.toml)"
    )
    assert f"{where}: {complaint}" in str(refused.value)


def test_networks_of_the_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "holdfast.toml"
    file.write_text("webhook_networks = ['127.0.0.0/8', 'fd00::/8']")
    assert list(map(str, load_settings().webhook_networks)) == ["127.0.0.0/8", "fd00::/8"]
    monkeypatch.setenv("HOLDFAST_WEBHOOK_NETWORKS", " 10.0.0.1 ,")
    assert list(map(str, load_settings().webhook_networks)) == ["10.0.0.1/32"]
    monkeypatch.delenv("HOLDFAST_WEBHOOK_NETWORKS")
    for bad in ("[8]", "8"):
        file.write_text(f"webhook_networks = {bad}")
        with pytest.raises(BadSettings, match="network"):
            load_settings()
