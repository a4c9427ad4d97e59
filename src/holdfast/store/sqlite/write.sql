-- The parts of a write that differ from sql/write.sql, for SQLite: each is for one row. Numbered parameters are the columns of that arm
-- in store/write.py, in their order.

-- name: name_run
INSERT INTO run_numbers (session, number, id)
VALUES (?1, coalesce((SELECT max(number) FROM run_numbers WHERE session = ?1), 0) + 1, ?2)
ON CONFLICT (session, id) DO NOTHING;

-- name: drop_drafts
DELETE FROM drafts WHERE session_id = ?1 AND run_id = ?2;

-- name: refer_blobs
-- Only for stored blobs; an existing reference counts as well.
INSERT INTO blob_references (session_id, sha256)
SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM blobs WHERE sha256 = ?2 AND state = 'stored')
ON CONFLICT (session_id, sha256) DO UPDATE SET sha256 = excluded.sha256;
