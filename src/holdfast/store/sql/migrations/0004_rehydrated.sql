-- `rehydrated_at` is when the session last came from an archive: retention leaves it alone for a grace period after that.
-- `fingerprint` is what a cleaned session keeps of its title, metadata and cursors: keyed digests that recognize an archive
-- made before the last change to them. The key is the last event, which is deleted, so the digests reveal nothing.

ALTER TABLE sessions ADD COLUMN rehydrated_at bigint;
ALTER TABLE sessions ADD COLUMN fingerprint text;
