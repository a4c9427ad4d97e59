-- name: fence
-- Checks the lease and takes the next numbers in one statement: no row means that the lease is lost.
UPDATE heads SET seq = seq + :count
  , writes = writes + 1, written = seq + :count   --? writes
WHERE session_id = :session_id AND epoch = :epoch AND holder = :holder
  AND writes = :writes                            --? writes
RETURNING seq;

-- name: number_event
-- For the few changes that need no lease, such as agent state. They are numbered under the head's lock like all others.
UPDATE heads SET seq = seq + 1 WHERE session_id = :session_id RETURNING seq;

-- name: events
SELECT e.seq, e.kind, :run_id_of(e) AS run_id, e.step, e.at,
  e.payload, m.body AS message
FROM events e
LEFT JOIN messages m ON m.session = e.session AND m.segment = e.segment AND m.position = e.position
WHERE e.session = :session AND e.seq > :after
  AND e.run = :run   --? run_id
ORDER BY e.seq
LIMIT :limit;

-- name: put_draft
-- Checked against the head like every write, but takes no number.
INSERT INTO drafts (session_id, run_id, part, kind, body, follows, at)
SELECT h.session_id, CAST(:run_id AS text), CAST(:part AS bigint), CAST(:kind AS text), CAST(:body AS text), h.seq, now_us()
FROM heads h
WHERE h.session_id = :session_id AND h.epoch = :epoch AND h.holder = :holder
--[postgres] FOR SHARE
ON CONFLICT (session_id, run_id, part) DO UPDATE SET kind = excluded.kind, body = excluded.body, at = excluded.at
RETURNING part;
