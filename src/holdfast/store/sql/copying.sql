-- A session that was moved to another store keeps its rows and accepts nothing: it continues in the other store.

-- name: move_session
UPDATE sessions SET status = 'moved', resting = CASE WHEN status = 'running' THEN 'idle' ELSE status END
WHERE id = :session_id AND status NOT IN ('cleaning', 'cleaned', 'moved')
RETURNING id;

-- name: park_head
-- Without a holder, and not ready although submissions are pending: the other store processes them.
UPDATE heads SET holder = NULL, ready_at = NULL, place = NULL WHERE session_id = :session_id;

-- name: reopen_session
UPDATE sessions SET status = coalesce(resting, 'idle'), resting = NULL WHERE id = :session_id AND status = 'moved'
RETURNING status;
