"""What is tried: texts and JSON of every kind, nasty ones first."""

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

_MORE = os.environ.get("FUZZ") == "more"
FUZZ = settings(
    derandomize=not _MORE,
    database=None,
    deadline=None,
    max_examples=5000 if _MORE else 150,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
"""The same examples each time, so that whoever changed nothing breaks nothing; with FUZZ=more ever new ones, and many."""

NASTY = [
    *("", " ", "0", "-1", "1e999", "NaN", "null", "true", "٣", "½", "\x00", "\ud800", "\u2028", "￿"),
    *("9" * 19, "9" * 400, "9" * 5000, "../../etc/passwd", "%00", "[" * 50, "{", "a" * 5000, "'; --", "\r\n"),
]
TEXTS: st.SearchStrategy[str] = st.sampled_from(NASTY) | st.text(max_size=40)
NUMBERS = st.sampled_from([0, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30]) | st.integers()
SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | NUMBERS | st.floats() | TEXTS.filter(lambda text: "\ud800" not in text)
)
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=12).filter(str.isprintable), inner, max_size=4)
    ),
    max_leaves=12,
)
