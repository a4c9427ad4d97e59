-- Deleting what a session contains, a bounded number of rows at a time, through each table's own key.

-- name: begin_cleaning
-- From now on nothing is accepted for it; unless it is on hold.
UPDATE sessions SET status = 'cleaning' WHERE id = :session_id AND hold = 0 RETURNING id;

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

-- name: delete_blob_references
DELETE FROM blob_references WHERE session_id = :session_id AND sha256 IN (
  SELECT sha256 FROM blob_references WHERE session_id = :session_id LIMIT :limit)
RETURNING 1 AS gone;
