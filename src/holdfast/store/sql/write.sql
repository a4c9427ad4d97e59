-- The arms of a write: what a batch may carry, each as one set-based statement. `rows(...)` stands for the rows of
-- that kind; `head_seq` is the session's number after the fence. SQLite runs an arm for each of its rows. PostgreSQL
-- runs the fence and all arms of all batches in a group as one statement, in which a refused batch has no rows.

-- name: fence_group
-- The holder is compared as an expression, so that no plan looks heads up by it: one holder may have thousands.
UPDATE heads SET seq = heads.seq + r.count, writes = heads.writes + 1, written = heads.seq + r.count
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[])
  AS r(session_id, epoch, holder, writes, count)
WHERE heads.session_id = r.session_id AND heads.epoch = r.epoch AND heads.holder || '' = r.holder
  AND heads.writes = r.writes
RETURNING heads.session_id, heads.seq;

-- name: add_events
INSERT INTO events (session_id, seq, kind, run_id, step, at, payload, segment, position)
SELECT session_id, head_seq - later, kind, run_id, step, now_us(), payload, segment, position
FROM rows(session_id text, later bigint, kind text, run_id text, step bigint, payload text, segment bigint, position bigint);

-- name: add_segments
INSERT INTO segments (session_id, number, parent, start)
SELECT session_id, number, parent, start
FROM rows(session_id text, number bigint, parent bigint, start bigint);

-- name: add_messages
INSERT INTO messages (session_id, segment, position, body)
SELECT session_id, segment, position, body
FROM rows(session_id text, segment bigint, position bigint, body text);

-- name: add_checkpoints
INSERT INTO checkpoints (session_id, id, run_id, step, kind, segment, length, seq, at)
SELECT session_id, id, run_id, step, kind, segment, length, head_seq, now_us()
FROM rows(session_id text, id text, run_id text, step bigint, kind text, segment bigint, length bigint);

-- name: put_runs
-- A run that has ended stays as it ended.
INSERT INTO runs (session_id, id, parent_id, agent, status, error, metadata, first_seq, started_at, ended_at)
SELECT session_id, id, parent_id, agent, status, error, metadata, head_seq, now_us(),
  CASE WHEN status IN ('running', 'waiting') THEN NULL ELSE now_us() END
FROM rows(session_id text, id text, parent_id text, agent text, status text, error text, metadata text)
WHERE TRUE
ON CONFLICT (session_id, id) DO UPDATE SET status = excluded.status, error = excluded.error,
  metadata = excluded.metadata, ended_at = excluded.ended_at
  WHERE runs.ended_at IS NULL;

-- name: put_effects
-- Started again means one more attempt. The outcome of an ended one never changes; its result may move into a message.
INSERT INTO effects (session_id, run_id, call_id, tool, state, step, arguments_digest, idempotency_key, result, error,
  summary, segment, position, attempts, started_at, ended_at)
SELECT session_id, run_id, call_id, tool, state, step, arguments_digest, idempotency_key, result, error,
  summary, segment, position, attempts, now_us(), CASE WHEN state = 'started' THEN NULL ELSE now_us() END
FROM rows(session_id text, run_id text, call_id text, tool text, state text, step bigint, arguments_digest text,
  idempotency_key text, result text, error text, summary text, segment bigint, position bigint, attempts bigint)
WHERE TRUE
ON CONFLICT (session_id, run_id, call_id) DO UPDATE SET
  state = CASE WHEN effects.ended_at IS NULL THEN excluded.state ELSE effects.state END,
  error = CASE WHEN effects.ended_at IS NULL THEN excluded.error ELSE effects.error END,
  result = CASE
    WHEN excluded.segment IS NOT NULL THEN NULL
    WHEN effects.ended_at IS NULL THEN excluded.result
    ELSE effects.result
  END,
  segment = coalesce(excluded.segment, effects.segment),
  position = coalesce(excluded.position, effects.position),
  idempotency_key = coalesce(excluded.idempotency_key, effects.idempotency_key),
  summary = coalesce(excluded.summary, effects.summary),
  attempts = CASE WHEN effects.ended_at IS NULL THEN excluded.attempts ELSE effects.attempts END,
  ended_at = coalesce(effects.ended_at, excluded.ended_at);

-- name: change_submissions
-- Given back without a reason, it is as if it had not been taken.
UPDATE submissions SET state = rows.state, reason = coalesce(rows.reason, submissions.reason),
  run_id = coalesce(rows.run_id, submissions.run_id),
  attempts = submissions.attempts - CASE WHEN rows.state = 'queued' AND rows.reason IS NULL THEN 1 ELSE 0 END,
  ended_at = CASE WHEN rows.state IN ('done', 'failed', 'dead') THEN now_us() END
FROM rows(session_id text, id text, state text, reason text, run_id text)
WHERE submissions.id = rows.id AND submissions.session_id = rows.session_id AND submissions.ended_at IS NULL
--[postgres] RETURNING submissions.session_id
;

-- name: drop_drafts
DELETE FROM drafts WHERE (session_id, run_id) IN (SELECT session_id, run_id FROM rows(session_id text, run_id text));

-- name: refer_blobs
-- For SQLite. Only what is stored; a reference that is there already counts as well.
INSERT INTO blob_references (session_id, sha256)
SELECT session_id, sha256
FROM rows(session_id text, sha256 text)
WHERE EXISTS (SELECT 1 FROM blobs WHERE blobs.sha256 = rows.sha256 AND state = 'stored')
ON CONFLICT (session_id, sha256) DO UPDATE SET sha256 = excluded.sha256;

-- name: refer_blobs_group
-- For PostgreSQL, after the fence, in its transaction. The lock makes a collector wait, and then look again.
WITH held AS MATERIALIZED (
  SELECT r.session_id, r.sha256 FROM unnest($1::text[], $2::text[]) AS r(session_id, sha256)
  JOIN blobs b ON b.sha256 = r.sha256 AND b.state = 'stored'
  FOR SHARE OF b
), added AS (
  INSERT INTO blob_references (session_id, sha256) SELECT DISTINCT session_id, sha256 FROM held
  ON CONFLICT DO NOTHING
)
SELECT session_id, count(DISTINCT sha256) AS referred FROM held GROUP BY session_id;

-- name: set_status
UPDATE sessions SET status = rows.status, waiting_for = rows.waiting_for, active_at = now_us(),
  cleaned_at = CASE WHEN rows.status = 'cleaned' THEN now_us() ELSE sessions.cleaned_at END
FROM rows(session_id text, status text, waiting_for text)
WHERE sessions.id = rows.session_id;
