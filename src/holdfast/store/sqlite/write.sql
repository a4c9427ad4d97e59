-- A write, for SQLite: each statement is for one row. Numbered parameters are the columns of that arm in store/write.py, in
-- their order; `?N` after the last of them is the session's event number after the fence.

-- name: add_events
INSERT INTO events (session_id, seq, kind, run_id, step, at, payload, segment, position)
VALUES (?1, ?9 - ?2, ?3, ?4, ?5, now_us(), ?6, ?7, ?8);

-- name: add_segments
INSERT INTO segments (session_id, number, parent, start) VALUES (?1, ?2, ?3, ?4);

-- name: add_messages
INSERT INTO messages (session_id, segment, position, body) VALUES (?1, ?2, ?3, ?4);

-- name: add_checkpoints
INSERT INTO checkpoints (session_id, id, run_id, step, kind, segment, length, seq, at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, now_us());

-- name: put_runs
-- A run that has ended is left unchanged.
INSERT INTO runs (session_id, id, parent_id, agent, status, error, metadata, first_seq, started_at, ended_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, now_us(), CASE WHEN ?5 IN ('running', 'waiting') THEN NULL ELSE now_us() END)
ON CONFLICT (session_id, id) DO UPDATE SET status = excluded.status, error = excluded.error,
  metadata = excluded.metadata, ended_at = excluded.ended_at
  WHERE runs.ended_at IS NULL;

-- name: put_effects
-- Starting again is one more attempt. The outcome of an ended effect never changes; its result may move into a message.
INSERT INTO effects (session_id, run_id, call_id, tool, state, step, arguments_digest, idempotency_key, result, error,
  summary, segment, position, attempts, started_at, ended_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, now_us(),
  CASE WHEN ?5 = 'started' THEN NULL ELSE now_us() END)
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
UPDATE submissions SET state = ?3, reason = CASE WHEN ?3 = 'done' THEN ?4 ELSE coalesce(?4, reason) END,
  run_id = coalesce(?5, run_id),
  attempts = coalesce(?6, attempts),
  ended_at = CASE WHEN ?3 IN ('done', 'failed', 'dead') THEN now_us() END
WHERE id = ?2 AND session_id = ?1 AND ended_at IS NULL;

-- name: drop_drafts
DELETE FROM drafts WHERE session_id = ?1 AND run_id = ?2;

-- name: drop_records
DELETE FROM records WHERE session_id = ?1 AND kind = ?2 AND key = ?3;

-- name: put_records
INSERT INTO records (session_id, kind, key, body, seq) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (session_id, kind, key) DO UPDATE SET body = excluded.body, seq = excluded.seq;

-- name: refer_blobs
-- Only for stored blobs; an existing reference counts as well.
INSERT INTO blob_references (session_id, sha256)
SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM blobs WHERE sha256 = ?2 AND state = 'stored')
ON CONFLICT (session_id, sha256) DO UPDATE SET sha256 = excluded.sha256;

-- name: set_status
UPDATE sessions SET status = ?2, waiting_for = ?3, active_at = now_us(),
  cleaned_at = CASE WHEN ?2 = 'cleaned' THEN now_us() ELSE cleaned_at END
WHERE id = ?1;
