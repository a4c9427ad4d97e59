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
SELECT coalesce(max(version), 0) AS version FROM migrations;

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
--[sqlite]   '' AS unsafe,
--[postgres]   (SELECT coalesce(string_agg(name, ', ' ORDER BY name), '') FROM pg_settings
--[postgres]     WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off') AS unsafe,
  (SELECT coalesce(now_us() - min(ready_at), 0) FROM heads WHERE ready_at IS NOT NULL) AS queue_wait;
