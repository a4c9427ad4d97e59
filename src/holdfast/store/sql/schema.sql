-- name: migration_lock
-- One process migrates at a time; SQLite already has the write lock.
--[sqlite] SELECT 1 AS locked;
--[postgres] SELECT pg_advisory_xact_lock(4830112657) AS locked;

-- name: create_schema
--[sqlite] SELECT 1 AS made;
--[postgres] CREATE SCHEMA IF NOT EXISTS holdfast;

-- name: has_migrations
--[sqlite] SELECT 1 AS found FROM sqlite_master WHERE type = 'table' AND name = 'migrations';
--[postgres] SELECT 1 AS found FROM pg_tables WHERE schemaname = 'holdfast' AND tablename = 'migrations';

-- name: other_tables
--[sqlite] SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 1;
--[postgres] SELECT tablename AS name FROM pg_tables WHERE schemaname = 'holdfast' LIMIT 1;

-- name: create_migrations
CREATE TABLE migrations (version bigint PRIMARY KEY, name text NOT NULL, applied_at bigint NOT NULL);

-- name: schema_version
SELECT coalesce(max(version), 0) AS version, (SELECT name FROM migrations WHERE version = 1) AS first FROM migrations;

-- name: add_migration
INSERT INTO migrations (version, name, applied_at) VALUES (:version, :name, now_us());

-- name: now
SELECT now_us() AS now;

-- name: totals
SELECT
  (SELECT count(*) FROM sessions) AS sessions,
  (SELECT count(*) FROM events) AS events,
  (SELECT count(*) FROM submissions WHERE ended_at IS NULL) AS pending,
  (SELECT count(*) FROM holders WHERE deadline > now_us()) AS holders,
  (SELECT count(*) FROM holders WHERE deadline <= now_us()) AS expired_holders,
  (SELECT count(*) FROM heads WHERE holder IS NOT NULL) AS leases,
  (SELECT coalesce(now_us() - min(ready_at), 0) FROM heads WHERE ready_at <= (SELECT now_us())) AS queue_wait;

-- name: sizes
-- SQLite has only the totals of its file: the size of each table would require reading all of it. The numbers of rows are estimates.
--[sqlite] SELECT NULL AS name, c.page_count * s.page_size AS bytes, f.freelist_count * s.page_size AS free_bytes, 0 AS number
--[sqlite] FROM pragma_page_count c, pragma_page_size s, pragma_freelist_count f;
--[postgres] SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes, CAST(NULL AS bigint) AS free_bytes,
--[postgres]   CAST(coalesce(nullif(pg_stat_get_live_tuples(c.oid), 0), greatest(c.reltuples, 0)) AS bigint) AS number
--[postgres] FROM pg_class c WHERE c.relnamespace = to_regnamespace('holdfast') AND c.relkind = 'r' ORDER BY bytes DESC, name;

-- name: growth
-- Reads the sessions that were last active in the period, in the order of that index: no session was active before it was created.
-- Events are numbered: those of an older session are its newest, back to the last one before the period, or all that a clean has left.
WITH period(start) AS (SELECT now_us() - CAST(:period_us AS bigint)), recent AS (
  SELECT s.created_at, h.seq,
    CASE WHEN s.created_at <= (SELECT start FROM period) THEN coalesce(
      (SELECT e.seq FROM events e WHERE e.session = h.number AND e.at <= (SELECT start FROM period) ORDER BY e.seq DESC LIMIT 1),
      (SELECT min(e.seq) - 1 FROM events e WHERE e.session = h.number),
      h.seq) ELSE 0 END AS seq_before
  FROM sessions s JOIN heads h ON h.session_id = s.id WHERE s.active_at > (SELECT start FROM period)
)
SELECT coalesce(sum(CASE WHEN created_at > (SELECT start FROM period) THEN 1 ELSE 0 END), 0) AS sessions,
  CAST(coalesce(sum(seq - seq_before), 0) AS bigint) AS events FROM recent;
