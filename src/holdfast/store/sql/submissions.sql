-- name: number_submission
-- The number of the queued event is the position in the queue.
UPDATE heads SET seq = seq + 1,
  ready_at = CASE
    WHEN CAST(:ready AS bigint) = 0 OR ready_at <= now_us() OR ready_at <= CAST(:deliver_at AS bigint) THEN ready_at
    WHEN CAST(:deliver_at AS bigint) > now_us() THEN CAST(:deliver_at AS bigint)
    ELSE now_us() END,
  priority = CASE WHEN CAST(:pending AS bigint) > 0 AND priority > CAST(:rank AS int) THEN priority ELSE CAST(:rank AS int) END
WHERE session_id = :session_id
RETURNING seq;

-- name: title_session
-- A session without a title gets one from its first message. A title that was removed from a session with runs stays removed.
UPDATE sessions SET title = :title, title_folded = :title_folded
WHERE id = :session_id AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = :session_id)
RETURNING id;

-- name: urgent_submissions
-- Submissions that do not wait for their turn: the control lane, and messages for the running turn. Signals wait until the turn does.
-- Without payloads, which are read when a submission is taken.
SELECT session_id, position, id, kind, lane, when_busy, idempotency_key, state, attempts, reason, run_id, created_at,
  started_at, ended_at, trace, deliver_at, priority
FROM submissions
WHERE session_id = :session_id AND ended_at IS NULL AND state = 'queued' AND deliver_at <= now_us()
  AND (lane = 'control' AND kind <> 'signal' OR when_busy IN ('steer', 'interrupt'))
ORDER BY lane, position
LIMIT :limit;
