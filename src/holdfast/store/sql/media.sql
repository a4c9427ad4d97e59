-- The register of blobs. A put touches an existing blob or adds an entry. The collector marks unneeded blobs,
-- has their bytes deleted, and then removes their entries. No key is used twice, so neither can harm the other.

-- name: lock_content
-- Serializes uploads of the same content: the second one finds the blob of the first.
--[sqlite] SELECT 1 AS locked;
--[postgres] SELECT pg_advisory_xact_lock(hashtextextended(:sha256, 0)) AS locked;

-- name: add_blob
INSERT INTO blobs (id, location, sha256, state, key, size, media_type, file_name, metadata, at)
VALUES (:id, :location, :sha256, :state, :key, :size, :media_type, :file_name, :metadata, now_us())
ON CONFLICT (id) DO UPDATE SET at = excluded.at WHERE blobs.state = 'storing'
RETURNING *;

-- name: blob
-- The session whose archive it is counts as a reference.
SELECT b.*, (SELECT count(*) FROM blob_references r WHERE r.sha256 = b.sha256)
  + (SELECT count(*) FROM sessions s WHERE s.archive = b.sha256) AS refs
FROM blobs b WHERE sha256 = :sha256 AND state = 'stored'
  AND location = :location   --? location
ORDER BY id DESC;

-- name: blobs
SELECT b.*, (SELECT count(*) FROM blob_references r WHERE r.sha256 = b.sha256)
  + (SELECT count(*) FROM sessions s WHERE s.archive = b.sha256) AS refs
FROM blobs b
WHERE TRUE
  AND location = :location   --? location
  AND state = :state         --? state
  AND id > :after            --? after
ORDER BY id
LIMIT :limit;

-- name: unneeded_blobs
-- The unneeded blobs of one page; `looked` is where the page ends.
WITH page AS (
  SELECT * FROM blobs
  WHERE location = :location
    AND id > :after          --? after
  ORDER BY id
  LIMIT :limit
)
SELECT page.*, (SELECT max(id) FROM page) AS looked, (SELECT count(*) FROM page) AS seen,
  CASE
    WHEN state = 'deleting' THEN 1
    WHEN state = 'storing' AND at <= now_us() - CAST(:dead_us AS bigint) THEN 1
    WHEN state = 'stored' AND at <= now_us() - CAST(:grace_us AS bigint)
      AND NOT EXISTS (SELECT 1 FROM blob_references r WHERE r.sha256 = page.sha256)
      AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.archive = page.sha256) THEN 1
    ELSE 0
  END AS unneeded
FROM page
ORDER BY id;

-- name: lock_blobs
-- A transaction that adds a reference to one of them has it locked: wait for that, and read the references afterwards.
SELECT id FROM blobs
--[sqlite] WHERE id IN (SELECT value FROM json_each(:ids))
--[postgres] WHERE id = ANY(CAST(:ids AS text[]))
ORDER BY id
--[postgres] FOR UPDATE
;

-- name: mark_blobs_for_deletion
-- OFFSET 0: one probe of the index per row. PostgreSQL might read all of the other table into memory.
UPDATE blobs SET state = 'deleting'
--[sqlite] WHERE id IN (SELECT value FROM json_each(:ids))
--[postgres] WHERE id = ANY(CAST(:ids AS text[]))
  AND (state = 'deleting' OR (state = 'storing' AND at <= now_us() - CAST(:dead_us AS bigint))
    OR (state = 'stored' AND at <= now_us() - CAST(:grace_us AS bigint)
      AND NOT EXISTS (SELECT 1 FROM blob_references r WHERE r.sha256 = blobs.sha256
--[postgres]         OFFSET 0
      )
      AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.archive = blobs.sha256
--[postgres]         OFFSET 0
      )))
RETURNING *;

-- name: owned_reference
-- Whether one of the owner's sessions refers to some content, most recently active first. It checks the owner's sessions one
-- by one, so that its duration reveals nothing about the references of others. A join could start with all references to the content.
SELECT s.id FROM sessions s
WHERE s.owner = :owner
  AND (SELECT count(*) FROM blob_references r WHERE r.session_id = s.id AND r.sha256 = :sha256) > 0
ORDER BY s.active_at DESC, s.id DESC
LIMIT 1;

-- name: media_bytes
-- The media of a session. While media is moved, the same content can be in two locations: it counts once.
SELECT CAST(coalesce(sum(size), 0) AS bigint) AS bytes FROM (
  SELECT max(b.size) AS size FROM blob_references r JOIN blobs b ON b.sha256 = r.sha256 AND b.state = 'stored'
  WHERE r.session_id = :session_id GROUP BY r.sha256
) AS media;
