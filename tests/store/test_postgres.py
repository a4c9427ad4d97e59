"""What only PostgreSQL has."""

import asyncpg
import pytest

from holdfast import open_store
from holdfast.types import Batch, NewEvent
from tests.builders import held_session

_RECORD_SETTING = """
CREATE TABLE public.seen (setting text);
CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO public.seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$;
CREATE TRIGGER see BEFORE INSERT ON holdfast.events FOR EACH ROW EXECUTE FUNCTION public.see();
CREATE TRIGGER see BEFORE INSERT ON holdfast.submissions FOR EACH ROW EXECUTE FUNCTION public.see();
"""


@pytest.mark.new_database
@pytest.mark.parametrize(
    ("default", "used"),
    [("off", "on"), ("local", "on"), ("remote_write", "on"), ("remote_apply", "remote_apply")],
)
@pytest.mark.parametrize("whose", ["DATABASE {database}", "ROLE postgres IN DATABASE {database}"])
async def test_commits_are_durable_whatever_the_default_is(
    postgres_url: str, whose: str, default: str, used: str
):
    database = postgres_url.rpartition("/")[2]
    async with open_store(postgres_url):
        pass
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute(_RECORD_SETTING)
        await connection.execute(
            f"ALTER {whose.format(database=database)} SET synchronous_commit = {default}"
        )
        async with open_store(postgres_url) as store:
            lease, _ = await held_session(store)  # over the pool
            await store.submit(lease.session_id, "message", "{}")
            await store.write(
                lease, Batch(events=[NewEvent(kind="tick")])
            )  # over the connection that commits
        seen = await connection.fetch("SELECT setting, count(*) AS n FROM public.seen GROUP BY setting")
        assert [row["setting"] for row in seen] == [used]
        assert seen[0]["n"] >= 3
    finally:
        await connection.close()
