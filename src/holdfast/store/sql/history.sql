-- name: history
-- Walks from the segment to the root, and takes from each the positions from its start up to the start of its child.
WITH RECURSIVE path (number, parent, start, stop) AS (
  SELECT number, parent, start, CAST(:length AS bigint) FROM segments
  WHERE session = :session AND number = :segment
  UNION ALL
  SELECT p.number, p.parent, p.start, CASE WHEN path.start < path.stop THEN path.start ELSE path.stop END
  FROM path JOIN segments p ON p.session = :session AND p.number = path.parent
)
--[sqlite] SELECT k.segment, k.position, b.body FROM (   -- sorts the keys, and reads each body when its row is fetched
--[sqlite] SELECT m.segment, m.position
--[postgres] SELECT m.segment, m.position, m.body
FROM path
JOIN messages m ON m.session = :session AND m.segment = path.number
  AND m.position >= path.start AND m.position < path.stop
WHERE m.position > :after AND m.position <= CAST(:after AS bigint) + :limit   -- dense: this is the page
ORDER BY m.position
--[sqlite] LIMIT :limit) AS k
--[sqlite] CROSS JOIN messages b ON b.session = :session AND b.segment = k.segment AND b.position = k.position
;

-- name: history_size
WITH RECURSIVE path (number, parent, start, stop) AS (
  SELECT number, parent, start, CAST(:length AS bigint) FROM segments
  WHERE session = :session AND number = :segment
  UNION ALL
  SELECT p.number, p.parent, p.start, CASE WHEN path.start < path.stop THEN path.start ELSE path.stop END
  FROM path JOIN segments p ON p.session = :session AND p.number = path.parent
)
--[sqlite] SELECT coalesce(sum(length(CAST(m.body AS BLOB))), 0) AS bytes
--[postgres] SELECT CAST(coalesce(sum(octet_length(m.body)), 0) AS bigint) AS bytes
FROM path
JOIN messages m ON m.session = :session AND m.segment = path.number
  AND m.position >= path.start AND m.position < path.stop;

-- name: checkpoints
-- Newest first.
SELECT :session_id_of(c) AS session_id, c.id,
  :run_id_of(c) AS run_id,
  c.step, c.kind, c.segment, c.length, c.seq, c.at
FROM checkpoints c
WHERE TRUE
  AND id = :id                 --? id
  AND session = :session       --? session_id
  AND run = :run               --? run_id
  AND seq > :seq_after         --? seq_after
  AND kind = :kind             --? kind
  AND (seq < :seq_before OR (seq = :seq_before AND id < :id_before))   --? seq_before
ORDER BY seq DESC, id DESC
LIMIT :limit;

-- name: before_run
-- The number of the run before this one.
SELECT p.first_seq FROM runs p
WHERE p.session_id = :session_id
  AND p.first_seq < (SELECT r.first_seq FROM runs r WHERE r.session_id = :session_id AND r.id = :run_id)
ORDER BY p.first_seq DESC LIMIT 1;

-- name: runs
-- In the order in which they started: by number within a session, by time for the delegates of a parent, which may have
-- their own sessions. A run that is recorded as running without a live holder was interrupted.
SELECT * FROM (
  SELECT r.session_id, r.id, r.parent_id, r.agent, r.error, r.metadata, r.first_seq, r.started_at, r.ended_at,
    CASE WHEN r.status = 'running' AND live.id IS NULL THEN 'interrupted' ELSE r.status END AS status
  FROM runs r
  JOIN heads h ON h.session_id = r.session_id
  LEFT JOIN holders live ON live.id = h.holder AND live.deadline > now_us()
) AS v
WHERE TRUE
  AND id = :id                                                                --? id
  AND session_id = :session_id                                                --? session_id
  AND parent_id = :parent_id                                                  --? parent_id
  AND (first_seq > :first_seq OR (first_seq = :first_seq AND id > :after_id)) --? first_seq
  AND (started_at > :started_at OR (started_at = :started_at AND id > :after_id)) --? started_at
ORDER BY first_seq, id    --? session_id
ORDER BY started_at, id   --? parent_id
LIMIT :limit;

-- name: find_runs
-- Of all sessions, newest first. With `interrupted`, only the last run of each session, which can be resumed: only its own delegates
-- followed. With `unresolved`, only runs that have ended and have a call that has no recorded end and waits for no answer.
SELECT r.session_id, r.id, r.parent_id, r.agent, r.error, r.metadata, r.first_seq, r.started_at, r.ended_at,
  CASE WHEN r.status = 'running' AND live.id IS NULL THEN 'interrupted' ELSE r.status END AS status
FROM runs r
JOIN heads h ON h.session_id = r.session_id
JOIN sessions s ON s.id = r.session_id
LEFT JOIN holders live ON live.id = h.holder AND live.deadline > now_us()
WHERE TRUE
  AND s.owner = :owner             --? owner
  AND r.session_id = :session_id   --? session_id
  AND r.parent_id = :parent_id     --? parent_id
  AND r.status IN ('running', 'interrupted') AND (r.status = 'interrupted' OR live.id IS NULL)   --? interrupted
  AND NOT EXISTS (   --? interrupted
    SELECT 1 FROM runs n WHERE n.session_id = r.session_id AND n.first_seq > r.first_seq   --? interrupted
      AND (n.parent_id IS NULL OR n.parent_id <> r.id))   --? interrupted
  AND (r.status <> 'running' OR live.id IS NULL)   --? unresolved
  AND (r.session_id, r.id) IN (   --? unresolved
    SELECT w.session_id, n.id FROM effects e JOIN heads w ON w.number = e.session   --? unresolved
    JOIN run_numbers n ON n.session = e.session AND n.number = e.run   --? unresolved
    WHERE e.ended_at IS NULL AND e.result IS NULL)   --? unresolved
  AND (r.started_at < :started_before OR (r.started_at = :started_before AND r.id < :id_before))   --? started_before
ORDER BY r.started_at DESC, r.id DESC
LIMIT :limit;

-- name: effects
-- Effects that were started at the same time are in the order of the numbers of their runs.
SELECT e.*, CAST(:session_id AS text) AS session_id, :run_id_of(e) AS run_id,
  m.body AS body
FROM effects e
LEFT JOIN messages m ON m.session = e.session AND m.segment = e.segment AND m.position = e.position
WHERE e.session = :session
  AND e.run = :run              --? run_id
  AND e.call_id = :call_id      --? call_id
  AND e.ended_at IS NULL        --? unresolved
  AND (e.started_at > :started_at OR (e.started_at = :started_at AND (e.run, e.call_id) > (   --? started_at
    (SELECT n.number FROM run_numbers n WHERE n.session = :session AND n.id = :after_run), CAST(:after_call AS text))))   --? started_at
ORDER BY e.started_at, e.run, e.call_id
LIMIT :limit;

-- name: records
SELECT r.kind, r.key, r.seq
  , r.body   --? bodies
FROM records r
WHERE r.session = :session AND r.kind = :kind AND r.key >= :low AND r.key < :high
  AND r.key > :after   --? after
  AND r.key < :before  --? before
ORDER BY r.key        --? ascending
ORDER BY r.key DESC   --? descending
LIMIT :limit;
