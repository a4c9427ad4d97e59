-- A write: one statement for the rows of each arm in store/write.py. Parameters are the columns of the arm; `:head_seq` is the session's
-- event number after the fence. `*` stands for the columns of the arm that are columns of the table, and for their values.
-- SQLite runs a statement for each row, PostgreSQL for all rows of a group of batches at once (arms.py explains how).

-- name: add_events
INSERT INTO events (*, seq, at) VALUES (*, :head_seq - :later, now_us());

-- name: add_notices
-- Only while there is a subscription, so that none pile up in a store that needs none.
INSERT INTO notices (session_id, seq, kind, at)
--[sqlite] SELECT :session_id, :head_seq - :later, :kind, now_us() WHERE EXISTS (SELECT 1 FROM subscriptions)
--[postgres] VALUES (:session_id, :head_seq - :later, :kind, now_us())
--[postgres]   AND EXISTS (SELECT 1 FROM subscriptions WHERE id > '')
;

-- name: add_segments
INSERT INTO segments (*) VALUES (*);

-- name: add_messages
INSERT INTO messages (*) VALUES (*);

-- name: add_checkpoints
INSERT INTO checkpoints (*, seq, at) VALUES (*, :head_seq, now_us());

-- name: put_runs
-- A run that has ended is left unchanged.
INSERT INTO runs (*, first_seq, started_at, ended_at)
VALUES (*, :head_seq, now_us(), CASE WHEN :status IN ('running', 'waiting') THEN NULL ELSE now_us() END)
ON CONFLICT (session_id, id) DO UPDATE SET status = excluded.status, error = excluded.error,
  metadata = excluded.metadata, ended_at = excluded.ended_at
  WHERE runs.ended_at IS NULL;

-- name: put_effects
-- Starting again is one more attempt. The outcome of an ended effect never changes; its result may move into a message.
INSERT INTO effects (*, started_at, ended_at)
VALUES (*, now_us(), CASE WHEN :state = 'started' THEN NULL ELSE now_us() END)
ON CONFLICT (session, run, call_id) DO UPDATE SET
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
UPDATE submissions SET state = :state,
  reason = CASE WHEN :state = 'done' OR submissions.state = 'waiting' THEN :reason ELSE coalesce(:reason, submissions.reason) END,
  run_id = coalesce(:run_id, submissions.run_id),
  attempts = coalesce(:attempts, submissions.attempts),
  deliver_at = CASE :state WHEN 'queued' THEN coalesce(:deliver_at, 0) WHEN 'waiting' THEN :deliver_at ELSE submissions.deliver_at END,
  ended_at = CASE WHEN :state IN ('done', 'failed', 'dead') THEN now_us() END
WHERE submissions.id = :id AND submissions.session_id = :session_id AND submissions.ended_at IS NULL
--[postgres] RETURNING submissions.session_id
;

-- name: drop_records
DELETE FROM records WHERE records.session = :session AND records.kind = :kind AND records.key = :key;

-- name: put_records
INSERT INTO records (*, seq) VALUES (*, :head_seq)
ON CONFLICT (session, kind, key) DO UPDATE SET body = excluded.body, seq = excluded.seq;

-- name: add_usage
INSERT INTO usage (*, day, owner)
VALUES (*, now_us() / 86400000000, (SELECT s.owner FROM sessions s WHERE s.id = :session_id))
ON CONFLICT (session_id, day, agent, model) DO UPDATE SET
  requests = usage.requests + excluded.requests, unpriced = usage.unpriced + excluded.unpriced,
  input_tokens = usage.input_tokens + excluded.input_tokens, output_tokens = usage.output_tokens + excluded.output_tokens,
  cache_read_tokens = usage.cache_read_tokens + excluded.cache_read_tokens,
  cache_write_tokens = usage.cache_write_tokens + excluded.cache_write_tokens,
  cost_nanos = usage.cost_nanos + excluded.cost_nanos, tool_calls = usage.tool_calls + excluded.tool_calls,
  working_us = usage.working_us + excluded.working_us;

-- name: set_status
UPDATE sessions SET status = :status, waiting_for = :waiting_for, active_at = now_us(),
  cleaned_at = CASE WHEN :status = 'cleaned' THEN now_us() ELSE sessions.cleaned_at END
WHERE sessions.id = :session_id;
