-- Delete the content of a session, a bounded number of rows at a time, by each table's own key.

-- name: retention_state
-- The facts for the guards. The holder is for callers that do not hold the session.
SELECT s.id, s.status, s.hold, s.agent, s.owner, s.created_at, s.cleaned_at, s.archive, s.rehydrated_at, s.fingerprint,
  h.seq, now_us() AS now, now_us() - s.active_at AS idle_us, live.id AS holder, live.name AS holder_name,
  (SELECT count(*) FROM submissions q WHERE q.session_id = s.id AND q.ended_at IS NULL) AS pending,
  (SELECT count(*) FROM commands c JOIN holders d ON d.id = c.holder AND d.deadline > now_us()
    WHERE c.session_id = s.id AND c.ended_at IS NULL) AS commands
FROM sessions s JOIN heads h ON h.session_id = s.id
LEFT JOIN holders live ON live.id = h.holder AND live.deadline > now_us()
WHERE s.id = :session_id;

-- name: cursors_behind
SELECT c.consumer FROM cursors c JOIN heads h ON h.session_id = c.session_id
WHERE c.session_id = :session_id AND c.seq < h.seq ORDER BY c.consumer LIMIT 100;

-- name: begin_cleaning
-- From now on the session accepts nothing. Does nothing if it is on hold.
UPDATE sessions SET status = 'cleaning', resting = CASE WHEN status = 'cleaning' THEN resting ELSE status END
WHERE id = :session_id AND hold = 0 RETURNING id;

-- name: begin_deleting
-- From now on the content can only be restored from an archive.
UPDATE sessions SET status = 'cleaning', cleaned_at = coalesce(cleaned_at, now_us()),
  fingerprint = :fingerprint,   --? fingerprint
  resting = CASE WHEN status = 'cleaning' THEN resting ELSE status END
WHERE id = :session_id AND hold = 0 RETURNING id;

-- name: stop_cleaning
UPDATE sessions SET status = CASE WHEN resting = 'running' THEN 'idle' ELSE coalesce(resting, 'idle') END,
  resting = NULL, archive = NULL
WHERE id = :session_id AND status = 'cleaning' AND cleaned_at IS NULL;

-- name: keep_archive
UPDATE sessions SET archive = :archive WHERE id = :session_id AND status = 'cleaning' RETURNING id;

-- name: finish_cleaning
-- The owner and the times remain; the title and the metadata do not.
UPDATE sessions SET status = 'cleaned', cleaned_at = now_us(), resting = NULL, title = '', title_folded = '',
  metadata = '{}', waiting_for = NULL
WHERE id = :session_id AND status = 'cleaning'
RETURNING cleaned_at;

-- name: content_counts
SELECT 'drafts' AS kind, count(*) AS number FROM drafts WHERE session_id = :session_id
UNION ALL SELECT 'outputs', count(*) FROM outputs WHERE session_id = :session_id
UNION ALL SELECT 'commands', count(*) FROM commands WHERE session_id = :session_id
UNION ALL SELECT 'effects', count(*) FROM effects WHERE session_id = :session_id
UNION ALL SELECT 'checkpoints', count(*) FROM checkpoints WHERE session_id = :session_id
UNION ALL SELECT 'events', count(*) FROM events WHERE session_id = :session_id
UNION ALL SELECT 'messages', count(*) FROM messages WHERE session_id = :session_id
UNION ALL SELECT 'segments', count(*) FROM segments WHERE session_id = :session_id
UNION ALL SELECT 'runs', count(*) FROM runs WHERE session_id = :session_id
UNION ALL SELECT 'submissions', count(*) FROM submissions WHERE session_id = :session_id
UNION ALL SELECT 'cursors', count(*) FROM cursors WHERE session_id = :session_id
UNION ALL SELECT 'states', count(*) FROM states WHERE session_id = :session_id
UNION ALL SELECT 'named_states', count(*) FROM named_states WHERE session_id = :session_id
UNION ALL SELECT 'records', count(*) FROM records WHERE session_id = :session_id
UNION ALL SELECT 'blob_references', count(*) FROM blob_references WHERE session_id = :session_id;

-- name: some_references
SELECT r.sha256 FROM blob_references r WHERE r.session_id = :session_id ORDER BY r.sha256 LIMIT :limit;

-- name: blobs_of
SELECT id FROM blobs WHERE state = 'stored'
--[sqlite] AND sha256 IN (SELECT value FROM json_each(:digests))
--[postgres] AND sha256 = ANY(CAST(:digests AS text[]))
ORDER BY id;

-- name: tombstone
SELECT at FROM tombstones WHERE session_id = :session_id;

-- name: add_tombstone
INSERT INTO tombstones (session_id, at) VALUES (:session_id, now_us()) ON CONFLICT (session_id) DO NOTHING;

-- name: drop_archive
UPDATE sessions SET archive = NULL WHERE id = :session_id;

-- name: erase_head
DELETE FROM heads WHERE session_id = :session_id;

-- name: erase_session
DELETE FROM sessions WHERE id = :session_id;

-- name: delete_drafts
DELETE FROM drafts WHERE session_id = :session_id AND (run_id, part) IN (
  SELECT run_id, part FROM drafts WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_outputs
DELETE FROM outputs WHERE session_id = :session_id AND (command_id, number) IN (
  SELECT command_id, number FROM outputs WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_commands
DELETE FROM commands WHERE session_id = :session_id AND id IN (
  SELECT id FROM commands WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_effects
DELETE FROM effects WHERE session_id = :session_id AND (run_id, call_id) IN (
  SELECT run_id, call_id FROM effects WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_checkpoints
DELETE FROM checkpoints WHERE session_id = :session_id AND (seq, id) IN (
  SELECT seq, id FROM checkpoints WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_events
DELETE FROM events WHERE session_id = :session_id AND seq IN (
  SELECT seq FROM events WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_messages
DELETE FROM messages WHERE session_id = :session_id AND (segment, position) IN (
  SELECT segment, position FROM messages WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_segments
DELETE FROM segments WHERE session_id = :session_id AND number IN (
  SELECT number FROM segments WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_runs
DELETE FROM runs WHERE session_id = :session_id AND id IN (
  SELECT id FROM runs WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_submissions
DELETE FROM submissions WHERE session_id = :session_id AND position IN (
  SELECT position FROM submissions WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_cursors
DELETE FROM cursors WHERE session_id = :session_id AND consumer IN (
  SELECT consumer FROM cursors WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_credentials
DELETE FROM credentials WHERE session_id = :session_id AND name IN (
  SELECT name FROM credentials WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_states
DELETE FROM states WHERE session_id = :session_id AND session_id IN (
  SELECT session_id FROM states WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_named_states
DELETE FROM named_states WHERE session_id = :session_id AND name IN (
  SELECT name FROM named_states WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_records
DELETE FROM records WHERE session_id = :session_id AND (kind, key) IN (
  SELECT kind, key FROM records WHERE session_id = :session_id ORDER BY kind, key LIMIT :limit)
RETURNING 1 AS gone;

-- name: delete_blob_references
DELETE FROM blob_references WHERE session_id = :session_id AND sha256 IN (
  SELECT sha256 FROM blob_references WHERE session_id = :session_id ORDER BY sha256 LIMIT :limit)
RETURNING 1 AS gone;

-- name: child_sessions
-- A delegate has the owner of its parent. An archive can name any run as the parent, even one of another owner.
SELECT DISTINCT c.session_id FROM runs p JOIN runs c ON c.parent_id = p.id
JOIN sessions o ON o.id = p.session_id JOIN sessions s ON s.id = c.session_id AND s.owner = o.owner
WHERE p.session_id = :session_id AND c.session_id <> :session_id
  AND c.session_id > :after   --? after
ORDER BY c.session_id LIMIT :limit;
