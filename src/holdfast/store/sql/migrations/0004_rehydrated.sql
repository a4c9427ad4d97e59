-- `rehydrated_at` is when the session was last restored from an archive: retention skips it for a grace period after that.
-- `fingerprint` has keyed digests of the title, metadata and cursors of a cleaned session, which recognize an archive
-- made before their last change. The key is the last event, which is deleted, so the digests reveal nothing.

ALTER TABLE sessions ADD COLUMN rehydrated_at bigint;
ALTER TABLE sessions ADD COLUMN fingerprint text;
