-- Statements that only PostgreSQL needs.

-- name: queue_submission
-- Does `number_submission`, `insert_submission`, `insert_event` and `touch_session` in one statement.
WITH head AS (
  UPDATE heads SET seq = seq + 1,
    ready_at = CASE WHEN CAST(:ready AS bigint) = 1 THEN coalesce(ready_at, now_us()) ELSE ready_at END
  WHERE session_id = :session_id RETURNING session_id, seq
), event AS (
  INSERT INTO events (session_id, seq, kind, run_id, step, at, payload)
  SELECT session_id, seq, 'submission_queued', NULL, NULL, now_us(), :event FROM head
), touched AS (
  UPDATE sessions SET active_at = now_us() WHERE id = :session_id
)
INSERT INTO submissions (
  session_id, position, id, kind, lane, when_busy, payload, idempotency_key, state, attempts, created_at, trace)
SELECT session_id, seq, :id, :kind, :lane, :when_busy, :payload, :idempotency_key, 'queued', 0, now_us(), :trace FROM head
RETURNING *;

-- name: begin_with_events
-- Does `begin_submissions`, `number_begun` and `insert_begun_events` in one statement.
WITH begun AS (
  UPDATE submissions SET state = 'claimed', attempts = attempts + 1, started_at = now_us()
  WHERE ended_at IS NULL AND state = 'queued' AND attempts < :max_attempts
    AND (session_id, position) IN (
      SELECT h.session_id, (
        SELECT q.position FROM submissions q
        WHERE q.session_id = h.session_id AND q.ended_at IS NULL AND q.state = 'queued'
          AND (q.lane = 'control' OR s.status <> 'waiting')
        ORDER BY q.lane, q.position LIMIT 1)
      FROM heads h JOIN sessions s ON s.id = h.session_id
      WHERE h.holder = :holder AND h.tenure = :tenure)
  RETURNING *
), numbered AS (
  UPDATE heads SET seq = seq + 1 WHERE session_id IN (SELECT session_id FROM begun) RETURNING session_id, seq
), events_added AS (
  INSERT INTO events (session_id, seq, kind, run_id, step, at, payload)
  SELECT session_id, n.seq, 'submission_started', b.run_id, NULL, now_us(),
    '{"submission_id": ' || to_json(b.id) || ', "kind": ' || to_json(b.kind) || ', "attempt": ' || b.attempts || '}'
  FROM begun b JOIN numbered n USING (session_id)
)
SELECT * FROM begun;

-- name: unlocked_beacons
-- The holders whose connection has ended. Right after the server has started, that is true of all.
SELECT h.id, h.ttl_us FROM holders h
WHERE h.deadline > now_us() AND h.beacon = 1
  AND clock_timestamp() > pg_postmaster_start_time() + make_interval(secs => h.ttl_us / 1e6)
  AND NOT EXISTS (
    SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.classid = 1751741542 AND l.objsubid = 2
      AND l.objid::bigint = hashtext(h.id)::bigint & 4294967295 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()));

-- name: lock_beacon
-- Held by the connection as long as it lives.
SELECT pg_try_advisory_lock(1751741542, hashtext(:id)) AS lit;

-- name: unlock_beacon
SELECT pg_advisory_unlock(1751741542, hashtext(:id)) AS dimmed;
