-- name: state
SELECT version, body FROM states WHERE session_id = :session_id;

-- name: set_state
-- The version was checked before, under the head's lock.
INSERT INTO states (session_id, version, body, at) VALUES (:session_id, :version, :body, now_us())
ON CONFLICT (session_id) DO UPDATE SET version = excluded.version, body = excluded.body, at = excluded.at;

-- name: named_state
SELECT version, body FROM named_states WHERE session_id = :session_id AND name = :name;

-- name: set_named_state
-- The version was checked before, under the head's lock.
INSERT INTO named_states (session_id, name, version, body, at) VALUES (:session_id, :name, :version, :body, now_us())
ON CONFLICT (session_id, name) DO UPDATE SET version = excluded.version, body = excluded.body, at = excluded.at;

-- name: state_versions
SELECT NULL AS name, version FROM states WHERE session_id = :session_id
UNION ALL SELECT name, version FROM named_states WHERE session_id = :session_id;

-- name: credentials
-- Without expired ones.
SELECT name, sealed, expires_at FROM credentials
WHERE session_id = :session_id AND (expires_at IS NULL OR expires_at > now_us())
ORDER BY name;

-- name: set_credential
INSERT INTO credentials (session_id, name, sealed, expires_at)
VALUES (:session_id, :name, :sealed, now_us() + CAST(:ttl_us AS bigint))
ON CONFLICT (session_id, name) DO UPDATE SET sealed = excluded.sealed, expires_at = excluded.expires_at;

-- name: drop_credentials
-- The named one, and all expired ones.
DELETE FROM credentials WHERE session_id = :session_id AND (name = :name OR expires_at <= now_us());

-- name: set_cursor
-- Monotonic: a lower number changes nothing.
INSERT INTO cursors (session_id, consumer, seq, at) VALUES (:session_id, :consumer, :seq, now_us())
ON CONFLICT (session_id, consumer) DO UPDATE SET seq = excluded.seq, at = excluded.at
  WHERE cursors.seq < excluded.seq;

-- name: cursor
SELECT consumer, seq, at FROM cursors WHERE session_id = :session_id AND consumer = :consumer;

-- name: cursors
SELECT consumer, seq, at FROM cursors
WHERE session_id = :session_id
  AND consumer > :after   --? after
ORDER BY consumer
LIMIT :limit;
