"""A log line is one entry, whatever is in it."""

import logging

import pytest

from holdfast.logs import log_context, start_logging


def test_control_characters_cannot_forge_a_line(capsys: pytest.CaptureFixture[str]):
    before, level = logging.root.handlers[:], logging.root.level
    logging.root.handlers = []
    try:
        start_logging("text")
        log_context(lambda: {"session_id": "x\n2026-11-16T00:00:00.000Z INFO holdfast.audit: forged\x1b[31m"})
        logging.getLogger("holdfast.test").warning("seen\rhere")
    finally:
        logging.root.handlers = before
        logging.root.setLevel(level)
        logging.getLogger("holdfast").setLevel(logging.NOTSET)
        log_context(dict)
    (line,) = capsys.readouterr().err.splitlines()
    assert r"seen\rhere session_id=x\n2026" in line
    assert "\x1b" not in line
