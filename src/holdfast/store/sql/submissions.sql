-- name: submission_by_id
SELECT * FROM submissions WHERE id = :id;

-- name: submission_by_key
SELECT * FROM submissions WHERE session_id = :session_id AND idempotency_key = :idempotency_key;

-- name: number_submission
-- The number of the queued event is the position in the queue.
UPDATE heads SET seq = seq + 1,
  ready_at = CASE WHEN CAST(:ready AS bigint) = 1 THEN coalesce(ready_at, now_us()) ELSE ready_at END
WHERE session_id = :session_id
RETURNING seq;

-- name: insert_submission
INSERT INTO submissions (
  session_id, position, id, kind, lane, when_busy, payload, idempotency_key, state, attempts, created_at, trace)
VALUES (
  :session_id, :position, :id, :kind, :lane, :when_busy, :payload, :idempotency_key, 'queued', 0, now_us(), :trace)
RETURNING *;

-- name: touch_session
UPDATE sessions SET active_at = now_us() WHERE id = :session_id;

-- name: title_session
-- A session without a title gets one from its first message. A title that was removed from a session with runs stays removed.
UPDATE sessions SET title = :title, title_folded = :title_folded
WHERE id = :session_id AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = :session_id)
RETURNING id;

-- name: next_submission
SELECT * FROM submissions
WHERE session_id = :session_id AND ended_at IS NULL AND state = 'queued'
  AND lane = :lane   --? lane
ORDER BY lane, position   -- 'control' sorts before 'main'
LIMIT 1;

-- name: urgent_submissions
-- Submissions that do not wait for their turn: the control lane, and messages for the running turn.
-- Without payloads, which are read when a submission is taken.
SELECT session_id, position, id, kind, lane, when_busy, idempotency_key, state, attempts, reason, run_id, created_at,
  started_at, ended_at, trace
FROM submissions
WHERE session_id = :session_id AND ended_at IS NULL AND state = 'queued'
  AND (lane = 'control' OR when_busy IN ('steer', 'interrupt'))
ORDER BY lane, position
LIMIT :limit;

-- name: queued_submission
SELECT * FROM submissions WHERE id = :id AND session_id = :session_id AND ended_at IS NULL AND state = 'queued';

-- name: claim_submission
UPDATE submissions SET state = 'claimed', attempts = attempts + 1, started_at = now_us()
WHERE session_id = :session_id AND position = :position AND ended_at IS NULL AND state = 'queued'
RETURNING *;

-- name: put_back
UPDATE submissions SET state = 'queued', attempts = attempts - 1
WHERE session_id = :session_id AND position = :position AND ended_at IS NULL AND state = 'claimed';

-- name: uncount_attempt
UPDATE submissions SET attempts = attempts - 1
WHERE session_id = :session_id AND position = :position AND ended_at IS NULL AND attempts > 0;

-- name: give_up_submission
UPDATE submissions SET state = 'dead', reason = :reason, ended_at = now_us()
WHERE session_id = :session_id AND position = :position AND ended_at IS NULL;

-- name: give_up_run
UPDATE runs SET status = 'failed', error = :reason, ended_at = now_us()
WHERE session_id = :session_id AND id = :id AND ended_at IS NULL;

-- name: fail_session
UPDATE sessions SET status = 'failed', waiting_for = :reason, active_at = now_us() WHERE id = :session_id;

-- name: submissions
SELECT session_id, position, id, kind, lane, when_busy, idempotency_key, state, attempts, reason, run_id, created_at,
  started_at, ended_at, trace
  , payload   --? payloads
FROM submissions
WHERE session_id = :session_id
  AND state = :state         --? state
  AND ended_at IS NULL       --? still_open
  AND position > :after      --? after
ORDER BY position
LIMIT :limit;
