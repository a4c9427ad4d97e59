import inspect
import pickle
import re

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, SessionBusy, StepError

FAMILY = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, HoldfastError)]


@pytest.mark.parametrize("kind", FAMILY)
def test_the_docstring_is_the_message(kind: type[HoldfastError]):
    facts = {name: f"<{name}>" for name in re.findall(r"{(\w+)", kind.__doc__ or "")}
    message = str(kind(**facts))
    assert all(fact in message for fact in facts.values())
    assert "{" not in message


@pytest.mark.parametrize(
    ("error", "message"),
    [("Out of stock.", "failed: Out of stock."), ("Why?", "failed: Why?"), ("wait...", "failed: wait...")],
)
def test_a_quoted_error_does_not_double_the_period(error: str, message: str):
    assert str(StepError(step="pay", error=error)).endswith(message)


def test_codes_are_fixed_and_distinct():
    codes = [kind.code for kind in FAMILY]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


def test_an_error_crosses_process_borders():
    error = SessionBusy(session_id="s", holder="h", until="noon")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.facts) == (SessionBusy, str(error), error.facts)
