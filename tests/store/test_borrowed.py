"""Stores on a pool or a client that belongs to the application."""

import asyncio
import json
from collections.abc import AsyncGenerator
from datetime import timedelta, timezone
from typing import Any

import asyncpg
import pytest
from bson.codec_options import CodecOptions
from pymongo import AsyncMongoClient

from holdfast import open_store
from holdfast.errors import BadInput, StoreError, StoreUnavailable
from holdfast.store import Store
from holdfast.store.postgres import connections
from holdfast.types import Holder, Lease
from tests.builders import held_session, ticks, until

# The contract's tests, on a store that is on a borrowed pool.
from tests.contract.test_journal import *  # noqa: F403
from tests.contract.test_watch import (  # noqa: F401
    test_many_watchers_of_a_busy_session,
    test_replay_then_live_without_gap_or_duplicate,
)
