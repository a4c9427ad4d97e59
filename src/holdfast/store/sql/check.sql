-- The invariants, each as a query for its violations: rows of (session_id, detail). Those that can be checked for
-- one session are checked when it is imported.

-- name: check_dense_events
-- 1, 2, 3, … up to the head's number; the events of a cleaned session may start later.
SELECT h.session_id, 'events ' || coalesce(e.first, 0) || ' to ' || coalesce(e.last, 0) || ', ' || coalesce(e.number, 0)
  || ' of them; the head says ' || h.seq AS detail
FROM heads h
JOIN sessions s ON s.id = h.session_id
LEFT JOIN (SELECT session, min(seq) AS first, max(seq) AS last, count(*) AS number FROM events
  WHERE session = :session   --? session_id
  GROUP BY session) e
  ON e.session = h.number
WHERE ((e.number IS NOT NULL AND (e.last <> h.seq OR e.first < 1 OR e.number <> e.last - e.first + 1))
  OR (coalesce(e.first, 0) <> CASE WHEN h.seq = 0 THEN 0 ELSE 1 END
      AND s.cleaned_at IS NULL AND s.status NOT IN ('cleaning', 'cleaned')))
  AND h.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_session_has_head
SELECT s.id AS session_id, 'it has no head' AS detail FROM sessions s
WHERE NOT EXISTS (SELECT 1 FROM heads h WHERE h.session_id = s.id)
LIMIT :limit;

-- name: check_head_has_session
SELECT h.session_id, 'its head has no session' AS detail FROM heads h
WHERE NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = h.session_id)
LIMIT :limit;

-- name: check_head_has_agent
SELECT h.session_id, 'its head has the agent ' || h.agent || ', it has ' || s.agent AS detail
FROM heads h JOIN sessions s ON s.id = h.session_id
WHERE h.agent <> s.agent
LIMIT :limit;

-- name: check_head_has_owner
-- CROSS JOIN, so that SQLite reads the heads first: by its own plan it would read them in the order of their owners, three times slower.
SELECT h.session_id, 'its head has the owner ' || coalesce(h.owner, 'none') || ', it has ' || s.owner AS detail
FROM heads h CROSS JOIN sessions s
WHERE s.id = h.session_id AND coalesce(h.owner, '') <> s.owner
LIMIT :limit;

-- name: check_head_has_priority
-- The order within an owner is that of the heads. A held head is set when it is released, and a moved session is not claimed.
SELECT h.session_id, 'its head has the priority ' || h.priority || ', its pending submissions have ' || q.priority AS detail
FROM (
  SELECT session_id, max(CASE priority WHEN 'high' THEN 1 WHEN 'low' THEN -1 ELSE 0 END) AS priority
  FROM submissions WHERE ended_at IS NULL GROUP BY session_id) AS q
JOIN heads h ON h.session_id = q.session_id JOIN sessions s ON s.id = q.session_id
WHERE h.holder IS NULL AND h.priority <> q.priority AND s.status <> 'moved'
LIMIT :limit;

-- name: check_held_has_holder
-- Sessions count as running while they are held. Any worker frees those of a holder past its deadline, but it must be known.
SELECT h.session_id, 'it is held by ' || h.holder || ', which is not registered' AS detail FROM heads h
WHERE h.holder IS NOT NULL AND NOT EXISTS (SELECT 1 FROM holders d WHERE d.id = h.holder)
LIMIT :limit;

-- name: check_claim_is_counted
-- Limits count the held sessions with a 1.
SELECT session_id, 'it is neither claimed nor acquired: ' || claimed AS detail FROM heads
WHERE claimed NOT IN (0, 1)
LIMIT :limit;

-- name: check_place_is_ready
-- A claim takes those in line that are ready. It would find one that is held or has no work again and again, or never.
SELECT session_id, 'it has the place ' || place || ' in line and is ' || CASE WHEN holder IS NULL THEN 'not ready' ELSE 'held' END AS detail
FROM heads
WHERE place IS NOT NULL AND (ready_at IS NULL OR holder IS NOT NULL)
LIMIT :limit;

-- name: check_place_is_last
-- The places of an owner continue after the last one. -1 is that of a session whose owner runs as many as allowed.
SELECT session_id, 'it has the place ' || place || ' in line, and had ' || coalesce(CAST(last_place AS text), 'none') || ' last' AS detail
FROM heads
WHERE place < -1 OR place >= 0 AND (last_place IS NULL OR last_place <> place)
LIMIT :limit;

-- name: check_running_has_lease
SELECT s.id AS session_id, 'it is said to be running and nobody holds it' AS detail
FROM sessions s JOIN heads h ON h.session_id = s.id
WHERE s.status = 'running' AND h.holder IS NULL
LIMIT :limit;

-- name: check_claimed_has_lease
SELECT q.session_id, 'submission ' || q.id || ' is claimed and nobody holds the session' AS detail
FROM submissions q JOIN heads h ON h.session_id = q.session_id
WHERE q.ended_at IS NULL AND q.state = 'claimed' AND h.holder IS NULL
LIMIT :limit;

-- name: check_ended_has_ended
SELECT session_id, 'submission ' || id || ' is ' || state || ' and has ended' AS detail FROM submissions
WHERE ((ended_at IS NOT NULL AND state IN ('queued', 'claimed', 'waiting'))
  OR (ended_at IS NULL AND state IN ('done', 'failed', 'dead')))
  AND session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_queued_is_ready
-- A submission in the queue of a free session, or with a time to continue, is found by the next claim after its time, unless the session was moved to another store.
SELECT q.session_id, 'submission ' || q.id || ' is ' || q.state || ' in a free session that is not ready for it' AS detail
FROM submissions q JOIN heads h ON h.session_id = q.session_id JOIN sessions s ON s.id = q.session_id
WHERE q.ended_at IS NULL AND h.holder IS NULL AND (h.ready_at IS NULL OR h.ready_at > q.deliver_at AND h.ready_at > now_us() + 1000000) AND s.status <> 'moved'
  AND (q.state = 'queued' AND (q.lane = 'control' OR s.status NOT IN ('waiting', 'sleeping')) OR q.state = 'waiting' AND q.deliver_at IS NOT NULL)
  AND q.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_schedule_has_tick
SELECT coalesce(session_id, 'none') AS session_id, 'schedule ' || id || ' has no next tick, and is not paused' AS detail
FROM schedules WHERE (next_at IS NULL) <> (paused = 1)
LIMIT :limit;

-- name: check_ready_is_free
SELECT session_id, 'it is ready and held at once' AS detail FROM heads
WHERE ready_at IS NOT NULL AND holder IS NOT NULL
LIMIT :limit;

-- name: check_message_has_segment
SELECT :session_id_of(m) AS session_id, 'message ' || m.position || ' lies outside of segment ' || m.segment AS detail FROM messages m
LEFT JOIN segments g ON g.session = m.session AND g.number = m.segment
WHERE (g.number IS NULL OR m.position < g.start)
  AND m.session = :session   --? session_id
LIMIT :limit;

-- name: check_segment_has_parent
SELECT :session_id_of(g) AS session_id, 'segment ' || g.number || ' has no parent ' || g.parent || ' before it' AS detail FROM segments g
WHERE g.parent IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM segments p WHERE p.session = g.session AND p.number = g.parent AND p.number < g.number)
  AND g.session = :session   --? session_id
LIMIT :limit;

-- name: check_segment_has_start
-- A history starts at 0. A segment starts within the messages of its parent, or right after them. A clean deletes these first.
SELECT :session_id_of(g) AS session_id, 'segment ' || g.number || ' begins at ' || g.start || ', where its parent has no messages' AS detail
FROM segments g LEFT JOIN segments p ON p.session = g.session AND p.number = g.parent
WHERE (g.start < 0 OR g.start > coalesce(
    (SELECT max(m.position) + 1 FROM messages m WHERE m.session = p.session AND m.segment = p.number), p.start, 0))
  AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = :session_id_of(g) AND s.status = 'cleaning')
  AND g.session = :session   --? session_id
LIMIT :limit;

-- name: check_checkpoint_has_messages
-- The last message of its history exists; the other checks make sure that those before it are dense.
SELECT :session_id_of(c) AS session_id, 'checkpoint ' || c.id || ' goes beyond the messages of segment ' || c.segment AS detail
FROM checkpoints c LEFT JOIN segments g ON g.session = c.session AND g.number = c.segment
WHERE c.length > coalesce(g.start, 0) AND NOT EXISTS (
  SELECT 1 FROM messages m
  WHERE m.session = c.session AND m.segment = c.segment AND m.position = c.length - 1)
  AND c.session = :session   --? session_id
LIMIT :limit;

-- name: check_dense_messages
SELECT :session_id_of(m) AS session_id, 'segment ' || m.segment || ' has ' || count(*) || ' messages up to position ' || max(m.position)
  AS detail
FROM messages m JOIN segments g ON g.session = m.session AND g.number = m.segment
WHERE m.session = :session   --? session_id
GROUP BY m.session, m.segment, g.start
HAVING count(*) <> max(m.position) + 1 - g.start
LIMIT :limit;

-- name: check_event_has_message
SELECT :session_id_of(e) AS session_id, 'event ' || e.seq || ' refers to a message that is not there' AS detail FROM events e
WHERE e.segment IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM messages m
  WHERE m.session = e.session AND m.segment = e.segment AND m.position = e.position)
  AND e.session = :session   --? session_id
LIMIT :limit;

-- name: check_effect_has_message
SELECT :session_id_of(e) AS session_id, 'effect ' || e.call_id || ' refers to a message that is not there' AS detail FROM effects e
WHERE e.segment IS NOT NULL AND NOT EXISTS (
  SELECT 1 FROM messages m
  WHERE m.session = e.session AND m.segment = e.segment AND m.position = e.position)
  AND e.session = :session   --? session_id
LIMIT :limit;

-- name: check_cursor_within_events
SELECT c.session_id, 'cursor ' || c.consumer || ' is at ' || c.seq || ', past the last event' AS detail
FROM cursors c JOIN heads h ON h.session_id = c.session_id
WHERE c.seq > h.seq
  AND c.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_record_within_events
SELECT :session_id_of(r) AS session_id, 'record ' || r.key || ' is of ' || r.seq || ', past the last event' AS detail
FROM records r JOIN heads h ON h.number = r.session
WHERE r.seq > h.seq
  AND r.session = :session   --? session_id
LIMIT :limit;

-- name: check_reference_has_blob
-- Everything that a session refers to is stored somewhere.
SELECT t.session_id, 'it refers to media+sha256://' || t.sha256 || ', which is not stored' AS detail FROM blob_references t
WHERE NOT EXISTS (SELECT 1 FROM blobs b WHERE b.sha256 = t.sha256 AND b.state = 'stored')
  AND t.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_outputs_have_command
SELECT DISTINCT coalesce(t.session_id, 'none') AS session_id, 'output of command ' || t.command_id || ' has no command' AS detail
FROM outputs t
WHERE NOT EXISTS (SELECT 1 FROM commands c WHERE c.id = t.command_id)
  AND t.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_commands_have_owner
-- A session's commands belong to its owner, and so does their output.
SELECT c.session_id, 'command ' || c.id || ' belongs to ' || c.owner || ', its session to ' || s.owner AS detail
FROM commands c JOIN sessions s ON s.id = c.session_id
WHERE c.owner <> s.owner
  AND c.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_outputs_have_owner
SELECT DISTINCT coalesce(t.session_id, 'none') AS session_id, 'output of command ' || t.command_id || ' belongs to ' || t.owner AS detail
FROM outputs t JOIN commands c ON c.id = t.command_id
WHERE t.owner <> c.owner
  AND t.session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_command_has_end
SELECT coalesce(session_id, 'none') AS session_id, 'command ' || id || ' is ' || state || ' and its end says otherwise' AS detail
FROM commands
WHERE ((state = 'running') <> (ended_at IS NULL) OR (ended_at IS NULL) <> (exit_code IS NULL)
  OR (purged_at IS NOT NULL AND ended_at IS NULL))
  AND session_id = :session_id   --? session_id
LIMIT :limit;

-- name: check_dense_outputs
-- 0, 1, 2, … up to the command's count. A purge deletes from the start, a bounded number at a time.
SELECT coalesce(c.session_id, 'none') AS session_id, 'command ' || c.id || ' has outputs ' || o.first || ' to ' || o.last
  || ', ' || o.number || ' of them, and says ' || c.outputs AS detail
FROM commands c
JOIN (SELECT command_id, min(number) AS first, max(number) AS last, count(*) AS number FROM outputs
  WHERE session_id = :session_id   --? session_id
  GROUP BY command_id) o
  ON o.command_id = c.id
WHERE o.last <> c.outputs - 1 OR o.number <> o.last - o.first + 1 OR (o.first <> 0 AND c.ended_at IS NULL)
LIMIT :limit;

-- name: check_archive_is_stored
SELECT t.id AS session_id, 'its archive media+sha256://' || t.archive || ' is not stored' AS detail FROM sessions t
WHERE t.archive IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM blobs b WHERE b.sha256 = t.archive AND b.state = 'stored')
LIMIT :limit;

-- name: check_erased_is_gone
-- A session that is being erased has its tombstone first, and accepts nothing.
SELECT t.session_id, 'it was erased and is there, ' || s.status AS detail
FROM tombstones t JOIN sessions s ON s.id = t.session_id
WHERE s.status <> 'cleaning'
LIMIT :limit;

-- name: check_stored_bytes_have_session
SELECT t.session_id, 'its size is recorded for ' || t.owner || ', who has no such session with content' AS detail FROM stored_bytes t
WHERE t.session_id <> ''
  AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = t.session_id AND s.owner = t.owner AND s.status <> 'cleaned')
LIMIT :limit;

-- name: check_stored_bytes_add_up
SELECT 'none' AS session_id, 'the sum of the stored bytes of ' || t.owner || ' is wrong by '
  || sum(CASE WHEN t.session_id = '' THEN t.bytes ELSE -t.bytes END) AS detail
FROM stored_bytes t GROUP BY t.owner
HAVING sum(CASE WHEN t.session_id = '' THEN t.bytes ELSE -t.bytes END) <> 0
LIMIT :limit;
