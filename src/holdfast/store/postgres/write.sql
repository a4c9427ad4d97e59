-- A write, for PostgreSQL: one statement for the batches of a whole group, made of the fence and the arms that the batches have. `x_rows`
-- are the rows for arm `x` of all batches that the fence accepted; `head_seq` is the session's event number after the fence.

-- name: fence_group
-- The holder is compared as an expression, so that no plan looks up heads by holder: one holder may have thousands.
UPDATE heads SET seq = heads.seq + r.count, writes = heads.writes + 1, written = heads.seq + r.count
FROM unnest($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[])
  AS r(session_id, epoch, holder, writes, count)
WHERE heads.session_id = r.session_id AND heads.epoch = r.epoch AND heads.holder || '' = r.holder
  AND heads.writes = r.writes
RETURNING heads.session_id, heads.seq;

-- name: add_events
INSERT INTO events (session_id, seq, kind, run_id, step, at, payload, segment, position)
SELECT session_id, head_seq - later, kind, run_id, step, now_us(), payload, segment, position
FROM add_events_rows AS rows;

-- name: add_segments
INSERT INTO segments (session_id, number, parent, start)
SELECT session_id, number, parent, start
FROM add_segments_rows AS rows;

-- name: add_messages
INSERT INTO messages (session_id, segment, position, body)
SELECT session_id, segment, position, body
FROM add_messages_rows AS rows;

-- name: add_checkpoints
INSERT INTO checkpoints (session_id, id, run_id, step, kind, segment, length, seq, at)
SELECT session_id, id, run_id, step, kind, segment, length, head_seq, now_us()
FROM add_checkpoints_rows AS rows;

-- name: put_runs
-- A run that has ended is left unchanged.
INSERT INTO runs (session_id, id, parent_id, agent, status, error, metadata, first_seq, started_at, ended_at)
SELECT session_id, id, parent_id, agent, status, error, metadata, head_seq, now_us(),
  CASE WHEN status IN ('running', 'waiting') THEN NULL ELSE now_us() END
FROM put_runs_rows AS rows
WHERE TRUE
ON CONFLICT (session_id, id) DO UPDATE SET status = excluded.status, error = excluded.error,
  metadata = excluded.metadata, ended_at = excluded.ended_at
  WHERE runs.ended_at IS NULL;

-- name: put_effects
-- Starting again is one more attempt. The outcome of an ended effect never changes; its result may move into a message.
INSERT INTO effects (session_id, run_id, call_id, tool, state, step, arguments_digest, idempotency_key, result, error,
  summary, segment, position, attempts, started_at, ended_at)
SELECT session_id, run_id, call_id, tool, state, step, arguments_digest, idempotency_key, result, error,
  summary, segment, position, attempts, now_us(), CASE WHEN state = 'started' THEN NULL ELSE now_us() END
FROM put_effects_rows AS rows
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
  started_at = CASE   -- an effect that waited for an answer starts when its tool runs
    WHEN effects.ended_at IS NULL AND effects.result IS NOT NULL AND excluded.attempts > effects.attempts
    THEN excluded.started_at ELSE effects.started_at END,
  ended_at = coalesce(effects.ended_at, excluded.ended_at);

-- name: change_submissions
UPDATE submissions SET state = rows.state,
  reason = CASE WHEN rows.state = 'done' THEN rows.reason ELSE coalesce(rows.reason, submissions.reason) END,
  run_id = coalesce(rows.run_id, submissions.run_id),
  attempts = coalesce(rows.attempts, submissions.attempts),
  ended_at = CASE WHEN rows.state IN ('done', 'failed', 'dead') THEN now_us() END
FROM change_submissions_rows AS rows
WHERE submissions.id = rows.id AND submissions.session_id = rows.session_id AND submissions.ended_at IS NULL
RETURNING submissions.session_id;

-- name: drop_records
DELETE FROM records USING drop_records_rows AS rows
WHERE records.session_id = rows.session_id AND records.kind = rows.kind AND records.key = rows.key;

-- name: put_records
INSERT INTO records (session_id, kind, key, body, seq)
SELECT session_id, kind, key, body, head_seq
FROM put_records_rows AS rows
WHERE TRUE
ON CONFLICT (session_id, kind, key) DO UPDATE SET body = excluded.body, seq = excluded.seq;

-- name: refer_blobs
-- After the fence, in its transaction. The lock makes a collector wait, and then check again.
WITH held AS MATERIALIZED (
  SELECT r.session_id, r.sha256 FROM unnest($1::text[], $2::text[]) AS r(session_id, sha256)
  JOIN blobs b ON b.sha256 = r.sha256 AND b.state = 'stored'
  FOR SHARE OF b
), added AS (
  INSERT INTO blob_references (session_id, sha256) SELECT DISTINCT session_id, sha256 FROM held
  ON CONFLICT DO NOTHING
)
SELECT session_id, count(DISTINCT sha256) AS referred FROM held GROUP BY session_id;

-- name: drop_drafts
-- Also after the fence, so that it sees drafts that were written while the fence waited for the head.
DELETE FROM drafts WHERE (session_id, run_id) IN (SELECT * FROM unnest($1::text[], $2::text[]));

-- name: set_status
UPDATE sessions SET status = rows.status, waiting_for = rows.waiting_for, active_at = now_us(),
  cleaned_at = CASE WHEN rows.status = 'cleaned' THEN now_us() ELSE sessions.cleaned_at END
FROM set_status_rows AS rows
WHERE sessions.id = rows.session_id;
