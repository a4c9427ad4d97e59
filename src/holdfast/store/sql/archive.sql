-- name: export_session
-- Its status at rest: nothing runs in an archive, and being cleaned or moved is not part of its content.
SELECT s.id, s.agent, s.owner, s.title,
  CASE
    WHEN s.status = 'cleaning' AND s.cleaned_at IS NOT NULL THEN 'cleaned'
    WHEN s.status IN ('cleaning', 'moved') AND s.resting IN ('waiting', 'failed') THEN s.resting
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
INSERT INTO heads (session_id, agent, epoch, seq, writes, written) VALUES (:id, :agent, 0, :seq, 0, 0);

-- name: rehydrate_session
-- Restores the session, except its owner, its activity time, and the hold, which may have been set since.
UPDATE sessions SET status = :status, title = :title, title_folded = :title_folded, waiting_for = :waiting_for,
  metadata = :metadata, cleaned_at = NULL, resting = NULL, archive = NULL, rehydrated_at = now_us(), fingerprint = NULL
WHERE id = :id;

-- name: imported_commands_lost
-- The service that ran them is not here.
UPDATE commands SET state = 'lost', exit_code = -1, ended_at = last_at
WHERE session_id = :session_id AND ended_at IS NULL;

-- name: ready_if_work
UPDATE heads SET ready_at = now_us()
WHERE session_id = :session_id AND holder IS NULL AND ready_at IS NULL AND EXISTS (
  SELECT 1 FROM submissions q
  WHERE q.session_id = :session_id AND q.ended_at IS NULL AND q.state <> 'waiting'
    AND q.lane = 'control'   --? control_only
  );

-- name: lock_stored
-- A collector waits for this lock, and then checks again.
SELECT sha256 FROM blobs WHERE sha256 = :sha256 AND state = 'stored'
--[postgres] FOR SHARE
;
