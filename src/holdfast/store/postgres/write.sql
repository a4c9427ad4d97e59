-- The parts of a write that differ from sql/write.sql, for PostgreSQL. One statement for the batches of a whole group is made of the fence
-- and the arms that the batches have. `x_rows` are the rows for arm `x` of all batches that the fence accepted, with the number of the
-- session as `session`.

-- name: fence_group
-- The holder is compared as an expression, so that no plan looks up heads by holder: one holder may have thousands.
UPDATE heads SET seq = heads.seq + r.count, writes = heads.writes + 1, written = heads.seq + r.count
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[])
  AS r(session_id, epoch, holder, writes, count)
WHERE heads.session_id = r.session_id AND heads.epoch = r.epoch AND heads.holder || '' = r.holder
  AND heads.writes = r.writes
RETURNING heads.session_id, heads.seq, heads.number;

-- name: refer_blobs
-- After the fence, in its transaction. The lock makes a collector wait, and then check again. An existing reference needs none: all
-- sessions of an agent refer to the profile of its requests.
WITH wanted AS MATERIALIZED (
  SELECT r.session_id, r.sha256, EXISTS (
    SELECT 1 FROM blob_references e WHERE e.session_id = r.session_id AND e.sha256 = r.sha256
  ) AS is_known
  FROM unnest($1::text[], $2::text[]) AS r(session_id, sha256)
), held AS MATERIALIZED (
  SELECT w.session_id, w.sha256 FROM wanted w JOIN blobs b ON b.sha256 = w.sha256 AND b.state = 'stored'
  WHERE NOT w.is_known
  FOR SHARE OF b
), added AS (
  INSERT INTO blob_references (session_id, sha256) SELECT DISTINCT session_id, sha256 FROM held
  ON CONFLICT DO NOTHING
)
SELECT session_id, count(DISTINCT sha256) AS referred
FROM (SELECT session_id, sha256 FROM held UNION ALL SELECT session_id, sha256 FROM wanted WHERE is_known) AS found
GROUP BY session_id;

-- name: charge_budgets
-- After the fence. Sums of another day or turn begin again. The rows are locked in the order of their keys.
INSERT INTO budgets (per, name, daily, period, requests, tokens, cost_nanos, working_us, changed_at)
SELECT r.per, r.name, r.daily, CASE WHEN r.daily = 1 THEN CAST(now_us() / 86400000000 AS text) ELSE r.turn END,
  sum(r.requests), sum(r.tokens), sum(r.cost_nanos), sum(r.working_us), now_us()
FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
  AS r(per, name, daily, turn, requests, tokens, cost_nanos, working_us)
GROUP BY r.per, r.name, r.daily, r.turn
ORDER BY r.per, r.name, r.daily
ON CONFLICT (per, name, daily) DO UPDATE SET period = excluded.period, changed_at = excluded.changed_at,
  requests = excluded.requests + CASE WHEN budgets.period = excluded.period THEN budgets.requests ELSE 0 END,
  tokens = excluded.tokens + CASE WHEN budgets.period = excluded.period THEN budgets.tokens ELSE 0 END,
  cost_nanos = excluded.cost_nanos + CASE WHEN budgets.period = excluded.period THEN budgets.cost_nanos ELSE 0 END,
  working_us = excluded.working_us + CASE WHEN budgets.period = excluded.period THEN budgets.working_us ELSE 0 END
RETURNING per, name, daily, requests, tokens, cost_nanos, working_us, most_requests, most_tokens, most_cost_nanos, most_working_us;

-- name: drop_drafts
-- Also after the fence, so that it sees drafts that were written while the fence waited for the head.
DELETE FROM drafts WHERE (session_id, run_id) IN (SELECT * FROM unnest($1::text[], $2::text[]));
