-- Claim ready sessions, each with its first submission. Workers run these statements most. Each statement covers all
-- claimed sessions, so that several cost no more than one.

-- name: first_ready
-- Without a lock. A session in line is ready, however long ago that was.
SELECT
  (SELECT min(ready_at) FROM (SELECT (
      SELECT h.ready_at FROM heads h
      WHERE h.ready_at IS NOT NULL
        AND h.agent = a.value AND h.place IS NULL   --? agents
      ORDER BY h.ready_at LIMIT 1) AS ready_at
--[sqlite]     FROM json_each(:agents) AS a   --? agents
--[postgres]     FROM unnest(CAST(:agents AS text[])) AS a(value)   --? agents
--[sqlite]     UNION ALL SELECT (   --? agents
--[sqlite]       SELECT h.ready_at FROM heads h WHERE h.ready_at IS NOT NULL AND h.agent = a.value AND h.place > -1 LIMIT 1)   --? agents
--[sqlite]     FROM json_each(:agents) AS a   --? agents
--[postgres]     UNION ALL SELECT (   --? agents
--[postgres]       SELECT h.ready_at FROM heads h WHERE h.ready_at IS NOT NULL AND h.agent = a.value AND h.place > -1 LIMIT 1)   --? agents
--[postgres]     FROM unnest(CAST(:agents AS text[])) AS a(value)   --? agents
    ) AS first) - now_us() AS ready_in,
  EXISTS (SELECT 1 FROM holders WHERE id = :holder AND deadline > now_us()) AS live;

-- name: claim_ready
-- A repeated claim waits for its first attempt, by its lock. Selects the first sessions of each agent, and of these the first of each agent
-- before the second, so that the cost does not depend on how many sessions are ready, for these agents and for others. An array on
-- PostgreSQL: the planner expects many ready sessions, and would join them with all sessions.
--[sqlite] WITH ready AS MATERIALIZED (SELECT session_id FROM (
--[sqlite]   SELECT h.session_id, a.key AS turn, row_number() OVER (PARTITION BY a.key ORDER BY h.place, h.ready_at) AS nth
--[sqlite]   FROM json_each(:agents) AS a CROSS JOIN heads h
--[sqlite]   WHERE h.session_id IN (
--[sqlite]     SELECT r.session_id FROM heads r WHERE r.agent = a.value AND r.ready_at <= now_us()
--[sqlite]       AND r.place IS NULL   --? due
--[sqlite]       AND r.place > -1     --? placed
--[sqlite]     ORDER BY r.place, r.ready_at LIMIT :limit))
--[postgres] WITH tried AS MATERIALIZED (SELECT pg_advisory_xact_lock(hashtextextended(:tenure, 0))),
--[postgres] ready AS MATERIALIZED (SELECT session_id FROM (
--[postgres]   SELECT h.session_id, a.turn, row_number() OVER (PARTITION BY a.turn ORDER BY h.place, h.ready_at) AS nth
--[postgres]   FROM unnest(CAST(:agents AS text[])) WITH ORDINALITY AS a(value, turn) CROSS JOIN LATERAL (
--[postgres]     SELECT r.session_id, r.place, r.ready_at FROM heads r WHERE r.agent = a.value AND r.ready_at <= (SELECT now_us())
--[postgres]       AND r.place IS NULL   --? due
--[postgres]       AND r.place > -1     --? placed
--[postgres]     ORDER BY r.place, r.ready_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS h)  AS first
  ORDER BY nth, turn
  LIMIT :limit
)
UPDATE heads SET holder = :holder, tenure = :tenure, epoch = epoch + 1, writes = 0, written = seq, ready_at = NULL, place = NULL, claimed = 1
--[sqlite] WHERE session_id IN (SELECT session_id FROM ready)
--[postgres] WHERE session_id = ANY(ARRAY(SELECT session_id FROM ready))
--[postgres]   AND (SELECT count(*) FROM tried) = 1
  AND EXISTS (SELECT 1 FROM holders d WHERE d.id = :holder AND d.deadline > now_us())
RETURNING session_id, agent;

-- name: claim_sessions
-- Those that were chosen, in the same transaction.
UPDATE heads SET holder = :holder, tenure = :tenure, epoch = epoch + 1, writes = 0, written = seq, ready_at = NULL, place = NULL, claimed = 1
--[sqlite] WHERE session_id IN (SELECT value FROM json_each(:session_ids))
--[postgres] WHERE session_id = ANY(CAST(:session_ids AS text[]))
  AND EXISTS (SELECT 1 FROM holders d WHERE d.id = :holder AND d.deadline > now_us())
RETURNING session_id, agent;

-- name: begin_submissions
-- The first in each queue, as in `take`: the control lane first, and only that while the session waits for a person, or its turn when its
-- time has come. That continues the attempt which ended with the question. A message for later has its place in the queue from before, and
-- must not overtake a turn that has begun.
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
RETURNING *;

-- name: begun_submissions
SELECT q.* FROM heads h JOIN submissions q ON q.session_id = h.session_id AND q.ended_at IS NULL AND q.state = 'claimed'
WHERE h.holder = :holder AND h.tenure = :tenure;

-- name: number_begun
UPDATE heads SET seq = seq + 1
WHERE session_id IN (SELECT value FROM json_each(:session_ids))
RETURNING session_id, seq;

-- name: insert_begun_events
INSERT INTO events (session, seq, kind, run, step, at, payload)
SELECT h.number, value ->> 1, 'submission_started',
  (SELECT n.number FROM run_numbers n WHERE n.session = h.number AND n.id = value ->> 2), NULL, now_us(), value ->> 3
FROM json_each(:events) CROSS JOIN heads h WHERE h.session_id = value ->> 0;

-- name: claimed_sessions
SELECT s.id, s.agent, s.owner, s.title, CASE WHEN s.status <> 'failed' THEN s.waiting_for END AS waiting_for, s.hold, s.metadata, s.created_at, s.active_at, s.cleaned_at,
  s.archive, h.epoch, h.seq, h.orphaned_by, d.name AS holder, d.deadline AS held_until,
  (SELECT count(*) FROM submissions q WHERE q.session_id = s.id AND q.ended_at IS NULL) AS pending,
  CASE WHEN s.status IN ('idle', 'failed') THEN 'queued' ELSE s.status END AS status,
  NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.session = h.number) AS fresh,
  EXISTS (SELECT 1 FROM budgets WHERE set_at IS NOT NULL) AS budgeted
FROM heads h JOIN sessions s ON s.id = h.session_id JOIN holders d ON d.id = h.holder
WHERE h.holder = :holder AND h.tenure = :tenure
ORDER BY s.active_at, s.id;
