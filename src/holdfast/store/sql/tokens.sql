-- name: add_token
INSERT INTO tokens (id, digest, owner, role, scopes, created_at, expires_at)
VALUES (:id, :digest, :owner, :role, :scopes, now_us(), now_us() + CAST(:lifetime_us AS bigint))
ON CONFLICT (id) DO UPDATE SET digest = excluded.digest   -- sent again
RETURNING *;

-- name: valid_token
SELECT * FROM tokens WHERE digest = :digest AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now_us());

-- name: revoke_token
UPDATE tokens SET revoked_at = coalesce(revoked_at, now_us()) WHERE id = :id RETURNING *;
