-- name: some_sessions
-- Reads no more of the owner's sessions than asked for.
SELECT count(*) AS number FROM (
  SELECT s.id FROM sessions s WHERE s.owner = :owner AND s.status <> 'cleaned' ORDER BY s.active_at DESC, s.id DESC LIMIT :limit
) AS few;

-- name: create_head
INSERT INTO heads (session_id, agent, owner, epoch, seq, writes, written
--[sqlite]   , number
) VALUES (:id, :agent, :owner, 0, 0, 0, 0
--[sqlite]   , (SELECT coalesce(max(number), 0) + 1 FROM heads)
);

-- name: sessions
-- A session that is recorded as running without a live holder is not: it is queued if submissions are pending, else idle. Four reasons
-- for waiting are computed here: all submissions are for later, no live worker serves the agent, the owner runs as many sessions as
-- allowed, or a run ended with its process and no queued submission continues it.
-- A failed session has the reason in the column waiting_for. It stays failed while all its submissions are for later.
-- PostgreSQL plans the inner query without the outer order, and would compute and sort all sessions.
SELECT v.*, CASE WHEN status = 'failed' THEN reason END AS error, CASE
  WHEN holder IS NULL AND status = 'queued' AND ready_at > now_us() THEN 'timer'
  WHEN holder IS NULL AND (ready_at <= now_us() OR status = 'queued') AND NOT EXISTS (
    SELECT 1 FROM holders d WHERE d.id > '' AND d.deadline > now_us()
--[sqlite]       AND EXISTS (SELECT 1 FROM json_each(d.agents) WHERE value = v.agent)
--[postgres]       AND CAST(d.agents AS jsonb) ? v.agent
  ) THEN 'worker'
  WHEN holder IS NULL AND place < 0 THEN 'limit'
  WHEN holder IS NULL AND status = 'idle' AND left_by IS NOT NULL
    AND EXISTS (SELECT 1 FROM runs r WHERE r.session_id = v.id AND r.status = 'running') THEN 'resume'
  WHEN stored <> 'failed' THEN reason END AS waiting_for
FROM (
  SELECT s.id, s.agent, s.owner, s.title, s.title_folded, s.waiting_for AS reason, s.status AS stored, s.hold, s.metadata,
    s.created_at, s.active_at, s.cleaned_at, s.archive, h.epoch, h.seq, live.name AS holder, live.deadline AS held_until,
    h.ready_at, h.place, coalesce(h.orphaned_by, h.holder) AS left_by,
    (SELECT count(*) FROM submissions q WHERE q.session_id = s.id AND q.ended_at IS NULL) AS pending,
    -- The first run of a delegate has a parent run in the session that delegated.
    (SELECT o.id FROM runs p JOIN sessions o ON o.id = p.session_id AND o.owner = s.owner AND o.id <> s.id
      WHERE p.id = (SELECT r.parent_id FROM runs r WHERE r.session_id = s.id ORDER BY r.first_seq, r.id LIMIT 1)) AS parent_id,
    CASE
      WHEN s.status = 'running' AND live.id IS NOT NULL THEN 'running'
      WHEN s.status IN ('running', 'idle', 'failed') AND EXISTS (
        SELECT 1 FROM submissions q WHERE q.session_id = s.id AND q.ended_at IS NULL AND q.state <> 'waiting'
          AND (s.status <> 'failed' OR q.deliver_at <= now_us())
      ) THEN 'queued'
      WHEN s.status = 'running' THEN 'idle'
      ELSE s.status
    END AS status
  FROM sessions s
  JOIN heads h ON h.session_id = s.id
  LEFT JOIN holders live ON live.id = h.holder AND live.deadline > now_us()
  WHERE TRUE
    -- These two find the sessions by an index; the status below is exact.
    AND s.status = :stored AND s.status <> 'idle'                         --? stored
    AND s.id IN (SELECT q.session_id FROM submissions q WHERE q.ended_at IS NULL)   --? queued
--[postgres]   ORDER BY s.active_at DESC, s.id DESC
) AS v
WHERE TRUE
  AND id = :id                                                            --? id
  AND owner = :owner                                                      --? owner
  AND agent = :agent                                                      --? agent
  AND status = :status                                                    --? status
--[sqlite]   AND instr(title_folded, :search) > 0                                 --? search
--[postgres]   AND strpos(title_folded, :search) > 0                              --? search
  AND (active_at < :active_before OR (active_at = :active_before AND id < :id_before))  --? active_before
ORDER BY active_at DESC, id DESC
LIMIT :limit;

-- name: mark_watched
UPDATE heads SET watched_at = now_us()
--[sqlite] WHERE session_id IN (SELECT value FROM json_each(:session_ids))
--[postgres] WHERE session_id = ANY(CAST(:session_ids AS text[]))
;

-- name: seconds_unwatched
-- A submission counts as watching.
SELECT now_us() - CASE WHEN h.watched_at > s.active_at THEN h.watched_at ELSE s.active_at END AS microseconds
FROM sessions s JOIN heads h ON h.session_id = s.id
WHERE s.id = :id;

-- name: numbered_sessions
-- Without a filter by owner, whose index would read all sessions of the owner.
SELECT id, owner, agent FROM sessions WHERE id >= :low AND id < :high
UNION ALL SELECT session_id, NULL, NULL FROM tombstones WHERE session_id >= :low AND session_id < :high;

-- name: audit
SELECT id, at, actor, action, session_id, detail FROM audit
WHERE TRUE
  AND session_id = :session_id   --? session_id
  AND id < :id_before            --? id_before
ORDER BY id DESC
LIMIT :limit;
