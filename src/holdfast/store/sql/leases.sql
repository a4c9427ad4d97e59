-- name: join
INSERT INTO holders (id, name, ttl_us, deadline, joined_at, beacon, agents)
VALUES (:id, :name, :ttl_us, now_us() + :ttl_us, now_us(), :beacon, :agents)
ON CONFLICT (id) DO UPDATE SET deadline = excluded.deadline
RETURNING deadline;

-- name: renew
-- One row, regardless of how many sessions the holder has.
UPDATE holders SET deadline = now_us() + ttl_us WHERE id = :id RETURNING deadline;

-- name: holders
SELECT h.id, h.name, h.ttl_us, h.deadline, h.agents, (SELECT count(*) FROM heads WHERE heads.holder = h.id) AS sessions
FROM holders h ORDER BY h.id;

-- name: lost_heads
-- Sessions whose holder is dead. The cost is proportional to the number of held sessions.
SELECT h.session_id, h.holder FROM heads h LEFT JOIN holders d ON d.id = h.holder
WHERE h.holder > '' AND (d.id IS NULL OR d.deadline <= now_us())
LIMIT :limit;

-- name: name_head
-- After the agent of the session has changed.
UPDATE heads SET agent = (SELECT s.agent FROM sessions s WHERE s.id = heads.session_id) WHERE session_id = :session_id;

-- name: expired_holders
SELECT id FROM holders WHERE id > '' AND deadline <= now_us() LIMIT 1;

-- name: remove_expired
DELETE FROM holders
WHERE deadline <= now_us() AND NOT EXISTS (SELECT 1 FROM heads WHERE heads.holder = holders.id)
RETURNING id, name, agents, joined_at;

-- name: lock_head
-- Held until the end of the transaction: every change of a session's holder or queue takes this lock.
SELECT epoch, holder FROM heads WHERE session_id = :session_id
--[postgres] FOR UPDATE
;

-- name: locked_head
-- A separate statement: one that had waited for the lock would see the session as it was before.
SELECT h.epoch, h.seq, h.holder, h.tenure, h.orphaned_by, s.status,
  (SELECT count(*) FROM submissions q WHERE q.session_id = h.session_id AND q.ended_at IS NULL) AS pending,
  s.title = '' AS untitled, s.metadata LIKE '%"framework"%' AS names_framework
FROM heads h JOIN sessions s ON s.id = h.session_id
WHERE h.session_id = :session_id;

-- name: claim_lock
-- A repeated claim waits here for its first attempt, which may still be committing.
--[sqlite] SELECT 1 AS locked;
--[postgres] SELECT pg_advisory_xact_lock(hashtextextended(:tenure, 0)) AS locked;

-- name: take_lease
-- Only for a live holder.
UPDATE heads SET holder = :holder, tenure = :tenure, epoch = epoch + 1, writes = 0, written = seq, ready_at = NULL,
  place = NULL, claimed = 0, orphaned_by = coalesce(CAST(:dead AS text), orphaned_by)
WHERE session_id = :session_id AND EXISTS (SELECT 1 FROM holders d WHERE d.id = :holder AND d.deadline > now_us())
RETURNING epoch, seq, orphaned_by;

-- name: free_head
-- Ready when the first of its pending submissions is due. A session that waits for a person takes only submissions of the control lane,
-- and its waiting turn, if that has a time. A moved session takes none. The priority is that of all its pending submissions.
UPDATE heads SET holder = NULL, orphaned_by = :orphaned_by, (ready_at, priority) = (
    SELECT CASE WHEN min(q.due) > now_us() THEN min(q.due) WHEN min(q.due) IS NOT NULL THEN now_us() END,
      coalesce(max(CASE q.priority WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END), 0)
    FROM (
      SELECT priority, CASE WHEN TRUE
        AND (lane = 'control' OR state = 'waiting')   --? control_only
        AND 1 = 0                                     --? moved
        THEN deliver_at END AS due
      FROM submissions WHERE session_id = :session_id AND ended_at IS NULL) AS q
    )
WHERE session_id = :session_id;

-- name: free_heads
-- The same for sessions whose heads are locked and whose status is written. `ready` is whether submissions are pending.
UPDATE heads SET holder = NULL, orphaned_by = NULL, (ready_at, priority) = (
    SELECT CASE WHEN min(q.due) > now_us() THEN min(q.due) WHEN min(q.due) IS NOT NULL THEN now_us() END,
      coalesce(max(CASE q.priority WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END), 0)
    FROM (
      SELECT o.priority, CASE WHEN o.lane = 'control' OR o.state = 'waiting' OR s.status NOT IN ('waiting', 'sleeping')
        THEN o.deliver_at END AS due
      FROM submissions o JOIN sessions s ON s.id = o.session_id
      WHERE o.session_id = heads.session_id AND o.ended_at IS NULL) AS q
    )
--[sqlite] WHERE session_id IN (SELECT value FROM json_each(:session_ids))
--[postgres] WHERE session_id = ANY(CAST(:session_ids AS text[]))
RETURNING session_id, ready_at IS NOT NULL AS ready;

-- name: ready_agents
SELECT agent, count(*) AS sessions FROM heads WHERE ready_at <= (SELECT now_us()) GROUP BY agent ORDER BY agent;

-- name: latest_ready
-- If the number of running sessions is limited, it also changes when one of them ends, so that another one may start.
SELECT coalesce(max(ready_at), 0)
  + (SELECT CAST(coalesce(sum(r.number), 0) AS bigint) FROM heads r WHERE r.holder > '' AND r.claimed = 1)   --? limited
  AS number FROM heads WHERE ready_at <= (SELECT now_us());

-- name: watched_heads
-- The current numbers of these sessions, in one statement for all that are watched.
SELECT session_id, seq AS number FROM heads
--[sqlite] WHERE session_id IN (SELECT value FROM json_each(:session_ids))
--[postgres] WHERE session_id = ANY(CAST(:session_ids AS text[]))
;

-- name: watched_inboxes
SELECT session_id, max(position) AS number FROM submissions
WHERE ended_at IS NULL
--[sqlite] AND session_id IN (SELECT value FROM json_each(:session_ids))
--[postgres] AND session_id = ANY(CAST(:session_ids AS text[]))
GROUP BY session_id;

-- name: watched_commands
SELECT id AS session_id, outputs - 1 AS number FROM commands
--[sqlite] WHERE id IN (SELECT value FROM json_each(:session_ids))
--[postgres] WHERE id = ANY(CAST(:session_ids AS text[]))
;

-- name: watched_drafts
SELECT session_id, max(at) AS number FROM drafts
--[sqlite] WHERE session_id IN (SELECT value FROM json_each(:session_ids))
--[postgres] WHERE session_id = ANY(CAST(:session_ids AS text[]))
GROUP BY session_id;
