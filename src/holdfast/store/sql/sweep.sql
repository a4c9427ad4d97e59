-- Find what is due, at a cost proportional to the result: each statement follows the index with its order. The time is
-- a scalar subquery, evaluated once: PostgreSQL does not use an index for the value of a volatile function.

-- name: agents
-- From one name to the next, without scanning all sessions.
WITH RECURSIVE names(agent) AS (
  SELECT min(agent) FROM sessions
  UNION ALL
  SELECT (SELECT min(s.agent) FROM sessions s WHERE s.agent > names.agent) FROM names WHERE names.agent IS NOT NULL
)
SELECT agent FROM names WHERE agent IS NOT NULL;

-- name: due_idle
SELECT id, agent, status, metadata, created_at, active_at, rehydrated_at, active_at AS place, now_us() AS now FROM sessions
WHERE agent = :agent AND status <> 'cleaned'
  AND hold = 0   --? free
  AND active_at <= (SELECT now_us()) - CAST(:older_us AS bigint)
  AND (active_at, id) > (CAST(:after AS bigint), CAST(:after_id AS text))   --? after
ORDER BY active_at, id LIMIT :limit;

-- name: due_age
SELECT id, agent, status, metadata, created_at, active_at, rehydrated_at, created_at AS place, now_us() AS now FROM sessions
WHERE agent = :agent AND status <> 'cleaned'
  AND hold = 0   --? free
  AND created_at <= (SELECT now_us()) - CAST(:older_us AS bigint)
  AND (created_at, id) > (CAST(:after AS bigint), CAST(:after_id AS text))   --? after
ORDER BY created_at, id LIMIT :limit;

-- name: due_cleaned
-- Only an erasure can still delete something of them. No session was active before it was created.
SELECT id, agent, status, metadata, created_at, active_at, rehydrated_at, created_at AS place, now_us() AS now FROM sessions
WHERE agent = :agent AND status = 'cleaned' AND hold = 0 AND created_at <= (SELECT now_us()) - CAST(:older_us AS bigint)
  AND (created_at, id) > (CAST(:after AS bigint), CAST(:after_id AS text))   --? after
ORDER BY created_at, id LIMIT :limit;

-- name: due_submissions
-- Oldest end first. Submissions of sessions on hold are kept.
SELECT s.id, s.agent, s.status, s.metadata, s.created_at, s.active_at, s.rehydrated_at, q.ended_at AS place, now_us() AS now,
  q.id AS submission_id, q.position
FROM submissions q JOIN sessions s ON s.id = q.session_id
WHERE q.ended_at IS NOT NULL AND q.ended_at <= (SELECT now_us()) - CAST(:older_us AS bigint) AND s.hold = 0
  AND (q.ended_at, q.session_id, q.position) > (   --? after
    CAST(:after AS bigint), CAST(:after_id AS text), CAST(:after_position AS bigint))   --? after
ORDER BY q.ended_at, q.session_id, q.position LIMIT :limit;

-- name: drop_submissions
DELETE FROM submissions
WHERE ended_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = session_id AND s.hold = 1)
--[sqlite] AND id IN (SELECT value FROM json_each(:ids))
--[postgres] AND id = ANY(CAST(:ids AS text[]))
RETURNING session_id;

-- name: take_duty
-- By its current holder, or by any holder if that is dead; not before `every` has passed since it was last done.
INSERT INTO duties (name, holder, taken_at, detail) VALUES (:name, :holder, now_us(), '{}')
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, taken_at = excluded.taken_at
WHERE (duties.holder = excluded.holder OR NOT EXISTS (
    SELECT 1 FROM holders d WHERE d.id = duties.holder AND d.deadline > now_us()))
  AND (duties.done_at IS NULL OR duties.done_at <= now_us() - CAST(:every_us AS bigint))
RETURNING name;

-- name: duty
SELECT u.name, u.taken_at, u.done_at, u.detail, live.name AS holder FROM duties u
LEFT JOIN holders live ON live.id = u.holder AND live.deadline > now_us()
WHERE u.name = :name;
