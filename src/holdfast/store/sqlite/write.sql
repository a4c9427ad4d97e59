-- The parts of a write that differ from sql/write.sql, for SQLite: each is for one row. Numbered parameters are the columns of that arm
-- in store/write.py, in their order.

-- name: name_run
INSERT INTO run_numbers (session, number, id)
VALUES (?1, coalesce((SELECT max(number) FROM run_numbers WHERE session = ?1), 0) + 1, ?2)
ON CONFLICT (session, id) DO NOTHING;

-- name: drop_drafts
DELETE FROM drafts WHERE session_id = ?1 AND run_id = ?2;

-- name: charge_budget
-- Sums of another day or turn begin again.
INSERT INTO budgets (per, name, daily, period, requests, tokens, cost_nanos, working_us, changed_at)
VALUES (?1, ?2, ?3, CASE WHEN ?3 = 1 THEN CAST(now_us() / 86400000000 AS text) ELSE ?4 END, ?5, ?6, ?7, ?8, now_us())
ON CONFLICT (per, name, daily) DO UPDATE SET period = excluded.period, changed_at = excluded.changed_at,
  requests = excluded.requests + CASE WHEN budgets.period = excluded.period THEN budgets.requests ELSE 0 END,
  tokens = excluded.tokens + CASE WHEN budgets.period = excluded.period THEN budgets.tokens ELSE 0 END,
  cost_nanos = excluded.cost_nanos + CASE WHEN budgets.period = excluded.period THEN budgets.cost_nanos ELSE 0 END,
  working_us = excluded.working_us + CASE WHEN budgets.period = excluded.period THEN budgets.working_us ELSE 0 END
RETURNING per, name, daily, requests, tokens, cost_nanos, working_us, most_requests, most_tokens, most_cost_nanos, most_working_us;

-- name: refer_blobs
-- Only for stored blobs; an existing reference counts as well.
INSERT INTO blob_references (session_id, sha256)
SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM blobs WHERE sha256 = ?2 AND state = 'stored')
ON CONFLICT (session_id, sha256) DO UPDATE SET sha256 = excluded.sha256;
