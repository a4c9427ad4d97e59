-- name: export_session
-- Its status at rest: nothing runs in an archive, and being cleaned or moved is not part of its content.
SELECT s.id, s.agent, s.owner, s.title,
  CASE
    WHEN s.status = 'cleaning' AND s.cleaned_at IS NOT NULL THEN 'cleaned'
    WHEN s.status IN ('cleaning', 'moved') AND s.resting IN ('waiting', 'sleeping', 'failed') THEN s.resting
    WHEN s.status IN ('cleaning', 'moved', 'running', 'queued') THEN 'idle'
    ELSE s.status
  END AS status,
  s.waiting_for, s.hold, s.metadata, s.created_at, s.active_at, h.seq
FROM sessions s JOIN heads h ON h.session_id = s.id
WHERE s.id = :session_id;

-- name: import_session
-- A time in an archive that is later than now is set to now: retention would wait for it.
INSERT INTO sessions (id, agent, owner, title, title_folded, status, waiting_for, hold, metadata,
  rehydrated_at,   --? archived
  created_at, active_at)
VALUES (:id, :agent, :owner, :title, :title_folded, :status, :waiting_for, :hold, :metadata,
  now_us(),        --? archived
  CASE WHEN CAST(:created_at AS bigint) > now_us() THEN now_us() ELSE CAST(:created_at AS bigint) END,
  CASE WHEN CAST(:active_at AS bigint) > now_us() THEN now_us() ELSE CAST(:active_at AS bigint) END)
ON CONFLICT (id) DO NOTHING
RETURNING id;

-- name: import_head
INSERT INTO heads (session_id, agent, owner, epoch, seq, writes, written
--[sqlite]   , number
) VALUES (:id, :agent, :owner, 0, :seq, 0, 0
--[sqlite]   , (SELECT coalesce(max(number), 0) + 1 FROM heads)
);

-- name: name_runs
-- Numbers for runs that the session has not named yet. Its head is locked, so that no other transaction takes the same numbers.
INSERT INTO run_numbers (session, number, id)
SELECT h.number, coalesce((SELECT max(n.number) FROM run_numbers n WHERE n.session = h.number), 0)
  + row_number() OVER (PARTITION BY h.number ORDER BY g.id), g.id
--[sqlite] FROM (SELECT value ->> 0 AS session_id, value ->> 1 AS id FROM json_each(:names)) AS g
--[postgres] FROM unnest(CAST(:session_ids AS text[]), CAST(:run_ids AS text[])) AS g(session_id, id)
JOIN heads h ON h.session_id = g.session_id
WHERE NOT EXISTS (SELECT 1 FROM run_numbers n WHERE n.session = h.number AND n.id = g.id);

-- name: ready_if_work
UPDATE heads SET (ready_at, priority) = (
    SELECT CASE WHEN min(q.due) > now_us() THEN min(q.due) WHEN min(q.due) IS NOT NULL THEN now_us() END,
      coalesce(max(CASE q.priority WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END), 0)
    FROM (
      SELECT priority, CASE WHEN TRUE
        AND (lane = 'control' OR state = 'waiting')   --? control_only
        THEN deliver_at END AS due
      FROM submissions WHERE session_id = :session_id AND ended_at IS NULL) AS q
    )
WHERE session_id = :session_id AND holder IS NULL AND ready_at IS NULL;

-- name: lock_stored
-- A collector waits for this lock, and then checks again.
SELECT sha256 FROM blobs WHERE sha256 = :sha256 AND state = 'stored'
--[postgres] FOR SHARE
;
