-- Statements that only PostgreSQL needs.

-- name: lock_free_heads
-- Without those that are locked: nobody waits for the lock of another session.
SELECT session_id FROM heads WHERE session_id = ANY(CAST(:session_ids AS text[])) FOR UPDATE SKIP LOCKED;

-- name: lock_held_heads
-- Those whose lease is the newest, in order.
SELECT h.session_id
FROM unnest(CAST(:session_ids AS text[]), CAST(:epochs AS bigint[]), CAST(:holders AS text[])) AS r(session_id, epoch, holder)
JOIN heads h ON h.session_id = r.session_id AND h.epoch = r.epoch AND h.holder || '' = r.holder
ORDER BY h.session_id FOR UPDATE OF h;

-- name: queue_submissions
-- Does for many sessions, whose heads are locked, what `submit` does for one. Leaves out what it would refuse or has already queued.
WITH given AS (
  SELECT * FROM unnest(
    CAST(:session_ids AS text[]), CAST(:ids AS text[]), CAST(:kinds AS text[]), CAST(:lanes AS text[]),
    CAST(:when_busy AS text[]), CAST(:payloads AS text[]), CAST(:idempotency_keys AS text[]), CAST(:traces AS text[]),
    CAST(:titles AS text[]), CAST(:titles_folded AS text[]), CAST(:events AS text[]), CAST(:priorities AS text[]), CAST(:ranks AS int[]))
  AS g(session_id, id, kind, lane, when_busy, payload, idempotency_key, trace, title, title_folded, event, priority, rank)
), accepted AS (
  SELECT g.*, queue.pending, h.holder IS NULL AND (g.lane = 'control' OR s.status NOT IN ('waiting', 'sleeping')) AS ready,
    s.title = '' AND g.title <> '' AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session_id = g.session_id) AS titled
  FROM given g JOIN heads h ON h.session_id = g.session_id JOIN sessions s ON s.id = g.session_id,
    LATERAL (
      SELECT count(*) AS pending FROM submissions q WHERE q.session_id = g.session_id AND q.ended_at IS NULL) AS queue
  WHERE s.status NOT IN ('moved', 'cleaning', 'cleaned') AND s.metadata NOT LIKE '%"framework"%'
    AND (queue.pending < CAST(:max_pending AS bigint) OR (g.lane <> 'main' AND g.kind <> 'signal'))
    AND (queue.pending = 0 OR g.when_busy <> 'reject')
    -- OFFSET 0: one probe of the index per row. A join might read the whole table, if the plan was made when that was empty.
    AND NOT EXISTS (SELECT 1 FROM submissions q WHERE q.id = g.id OFFSET 0)
    AND NOT EXISTS (
      SELECT 1 FROM submissions q WHERE q.session_id = g.session_id AND q.idempotency_key = g.idempotency_key OFFSET 0)
), head AS (
  UPDATE heads SET seq = seq + 1,
    ready_at = CASE WHEN a.ready THEN least(ready_at, now_us()) ELSE ready_at END,
    priority = CASE WHEN a.pending > 0 THEN greatest(heads.priority, a.rank) ELSE a.rank END
  FROM accepted a WHERE heads.session_id = a.session_id RETURNING heads.session_id, heads.seq, heads.number
), event AS (
  INSERT INTO events (session, seq, kind, run, step, at, payload)
  SELECT head.number, head.seq, 'submission_queued', NULL, NULL, now_us(), a.event FROM head JOIN accepted a USING (session_id)
), touched AS (
  UPDATE sessions SET active_at = now_us(), title = CASE WHEN a.titled THEN a.title ELSE sessions.title END,
    title_folded = CASE WHEN a.titled THEN a.title_folded ELSE sessions.title_folded END
  FROM accepted a WHERE sessions.id = a.session_id
)
INSERT INTO submissions (
  session_id, position, id, kind, lane, when_busy, payload, idempotency_key, state, attempts, created_at, trace, deliver_at, priority)
SELECT session_id, head.seq, a.id, a.kind, a.lane, a.when_busy, a.payload, a.idempotency_key, 'queued', 0, now_us(), a.trace, 0, a.priority
FROM head JOIN accepted a USING (session_id)
RETURNING *;

-- name: begin_with_events
-- Does `begin_submissions`, `number_begun` and `insert_begun_events` in one statement.
WITH begun AS (
  UPDATE submissions SET state = 'claimed', attempts = attempts + CASE WHEN state = 'waiting' THEN 0 ELSE 1 END, started_at = now_us(),
    reason = CASE WHEN state <> 'waiting' THEN reason END
  WHERE ended_at IS NULL AND state IN ('queued', 'waiting') AND (attempts < :max_attempts OR state = 'waiting')
    AND (session_id, position) IN (
      SELECT h.session_id, (
        SELECT q.position FROM submissions q
        WHERE q.session_id = h.session_id AND q.ended_at IS NULL AND (
            q.state = 'waiting' OR q.state = 'queued' AND (q.lane = 'control' OR s.status NOT IN ('waiting', 'sleeping'))) AND q.deliver_at <= now_us()
          AND (q.deliver_at = 0 OR q.run_id IS NOT NULL OR NOT EXISTS (
            SELECT 1 FROM submissions b WHERE b.session_id = q.session_id AND b.ended_at IS NULL AND b.lane = 'main' AND b.run_id IS NOT NULL))
        ORDER BY q.lane, q.position LIMIT 1)
      FROM heads h JOIN sessions s ON s.id = h.session_id
      WHERE h.holder = :holder AND h.tenure = :tenure)
  RETURNING *
), numbered AS (
  UPDATE heads SET seq = seq + 1 WHERE session_id IN (SELECT session_id FROM begun) RETURNING session_id, seq, number
), events_added AS (
  INSERT INTO events (session, seq, kind, run, step, at, payload)
  SELECT n.number, n.seq, 'submission_started',
    (SELECT r.number FROM run_numbers r WHERE r.session = n.number AND r.id = b.run_id), NULL, now_us(),
    '{"submission_id": ' || to_json(b.id) || ', "kind": ' || to_json(b.kind) || ', "attempt": ' || b.attempts || '}'
  FROM begun b JOIN numbered n USING (session_id)
)
SELECT * FROM begun;

-- name: unlocked_beacons
-- The holders whose connection has ended. Right after the server has started, that is true of all.
SELECT h.id, h.ttl_us FROM holders h
WHERE h.id > '' AND h.deadline > now_us() AND h.beacon = 1
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

-- name: server_settings
-- What this connection uses, and what it would use by the defaults of the server, the database and the role.
SELECT name, setting, reset_val FROM pg_settings WHERE name = ANY(CAST(:names AS text[])) ORDER BY name;
