-- name: insert_command
-- Inserts once, even if it is sent repeatedly. A command of a session belongs to the owner of the session.
INSERT INTO commands (id, session_id, owner, call_id, command, cwd, timeout_us, holder, host, pid, pid_started, state,
  stop_requested, outputs, stdout_bytes, stderr_bytes, left_out_bytes, damaged, started_at, last_at)
VALUES (:id, :session_id, COALESCE((SELECT owner FROM sessions WHERE id = CAST(:session_id AS idtext)), :owner), :call_id, :command, :cwd, :timeout_us, :holder, :host, :pid, :pid_started, 'running',
  0, 0, 0, 0, 0, 0, now_us(), 0)
ON CONFLICT (id) DO NOTHING;

-- name: number_outputs
-- The fence and the numbering in one statement: no row means that the command is not ours. Each event is later than the previous one.
UPDATE commands SET outputs = outputs + :count, state = :state, exit_code = :exit_code, stdout_bytes = :stdout_bytes,
  stderr_bytes = :stderr_bytes, left_out_bytes = :left_out_bytes, damaged = :damaged,
  last_at = :count + CASE
    WHEN now_us() > last_at AND now_us() > started_at THEN now_us()
    WHEN last_at > started_at THEN last_at ELSE started_at END
  , ended_at = now_us()   --? ends
WHERE id = :id AND holder = :holder AND outputs = :before AND ended_at IS NULL
RETURNING *, CAST(NULL AS text) AS service;

-- name: commands
SELECT c.*, live.name AS service FROM commands c
LEFT JOIN holders live ON live.id = c.holder AND live.deadline > now_us() AND c.ended_at IS NULL
WHERE TRUE
  AND c.id = :id                   --? id
  AND c.session_id = :session_id   --? session_id
  AND c.owner = :owner             --? owner
  AND c.holder = :holder           --? holder
  AND c.state = :state             --? state
  AND c.ended_at IS NULL           --? still_running
  AND c.id < :id_before            --? id_before
ORDER BY c.id DESC
LIMIT :limit;

-- name: outputs
SELECT * FROM outputs
WHERE command_id = :command_id
  AND owner = :owner           --? owner
  AND number > :after          --? after
  AND number < :before         --? before
  AND at >= :since             --? since
  AND at < :until              --? until
ORDER BY number                --? oldest_first
ORDER BY number DESC           --? newest_first
LIMIT :limit;

-- name: log_of_commands
SELECT *, CAST(NULL AS text) AS service FROM commands
WHERE purged_at IS NULL
  AND owner = :owner                               --? owner
  AND started_at >= :since                         --? since
  AND started_at < :until                          --? until
  AND (started_at, id) > (:later_at, :later_id)       --? later_at
  AND (started_at, id) < (:earlier_at, :earlier_id)   --? earlier_at
ORDER BY started_at, id                            --? oldest_first
ORDER BY started_at DESC, id DESC                  --? newest_first
LIMIT :limit;

-- name: log_of_outputs
SELECT * FROM outputs
WHERE TRUE
  AND owner = :owner                         --? owner
  AND number > :after                        --? after
  AND at >= :since                           --? since
  AND at < :until                            --? until
  AND (at, id) > (:later_at, :later_id)         --? later_at
  AND (at, id) < (:earlier_at, :earlier_id)     --? earlier_at
ORDER BY at, id                              --? oldest_first
ORDER BY at DESC, id DESC                    --? newest_first
LIMIT :limit;

-- name: commands_by_id
SELECT *, CAST(NULL AS text) AS service FROM commands
WHERE purged_at IS NULL
--[sqlite]   AND id IN (SELECT value FROM json_each(:ids))
--[postgres]   AND id = ANY(CAST(:ids AS text[]))
  AND owner = :owner   --? owner
;

-- name: commands_to_purge
-- Oldest first, by the index of commands that ended and were not purged. The cost is proportional to the result and the commands on hold.
SELECT c.id, c.session_id FROM commands c
WHERE c.ended_at IS NOT NULL AND c.purged_at IS NULL AND c.ended_at <= now_us() - :older_than_us
  AND c.owner = :owner   --? owner
  AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = c.session_id AND s.hold = 1)
ORDER BY c.ended_at, c.id
LIMIT :limit;
