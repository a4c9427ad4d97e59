-- name: state_versions
SELECT NULL AS name, version FROM states WHERE session_id = :session_id
UNION ALL SELECT name, version FROM named_states WHERE session_id = :session_id;

-- name: credentials
-- Without expired ones.
SELECT name, sealed, expires_at FROM credentials
WHERE session_id = :session_id AND (expires_at IS NULL OR expires_at > now_us())
ORDER BY name;

-- name: drop_credentials
-- The named one, and all expired ones.
DELETE FROM credentials WHERE session_id = :session_id AND (name = :name OR expires_at <= now_us());

-- name: set_cursor
-- Monotonic: a lower number changes nothing.
INSERT INTO cursors (session_id, consumer, seq, at) VALUES (:session_id, :consumer, :seq, now_us())
ON CONFLICT (session_id, consumer) DO UPDATE SET seq = excluded.seq, at = excluded.at
  WHERE cursors.seq < excluded.seq;
