import pytest

from holdfast.store.mongo import documents
from holdfast.store.mongo.documents import Clock


def test_it_follows_the_server_and_does_not_go_back(monkeypatch: pytest.MonkeyPatch):
    ours = 100.0
    monkeypatch.setattr(documents.time, "monotonic", lambda: ours)
    clock = Clock()
    assert clock.now() is None

    assert clock.update(5_000_000) == 5_000_000
    ours += 1
    assert clock.now() == 6_000_000

    clock.update(5_990_000)  # an answer that took 10 ms longer
    assert clock.now() == 6_000_000
    clock.update(6_020_000)  # and one that was quicker
    assert clock.now() == 6_020_000


def test_what_was_said_long_ago_does_not_count(monkeypatch: pytest.MonkeyPatch):
    ours = 100.0
    monkeypatch.setattr(documents.time, "monotonic", lambda: ours)
    clock = Clock()
    clock.update(5_000_000)
    ours += 11
    assert clock.now() is None

    clock.update(4_000_000)  # another server, whose clock is behind
    assert clock.now() == 4_000_000
