-- The line of each agent, in which its ready sessions stand if there are more of them than a claim takes. `place > -1` leaves the planner
-- no other index than the one in the order of the line: `place >= 0` would permit that of an owner's sessions.

-- name: line_state
-- Without a lock: usually nothing is ready. `due` counts the sessions without a place, up to one more than the claim takes. The other
-- conditions are subqueries with an order, so that the planner reads one entry of an index for each.
SELECT
  EXISTS (SELECT 1 FROM holders WHERE id = :holder AND deadline > now_us()) AS live,
  (SELECT count(*) FROM (
    SELECT 1 FROM
--[sqlite]     json_each(:agents) AS a CROSS JOIN heads h
--[postgres]     unnest(CAST(:agents AS text[])) AS a(value) JOIN heads h ON TRUE
    WHERE h.agent = a.value AND h.place IS NULL AND h.ready_at <= (SELECT now_us()) LIMIT :limit + 1) AS few) AS due,
--[sqlite]   EXISTS (SELECT 1 FROM json_each(:agents) AS a WHERE (
--[postgres]   EXISTS (SELECT 1 FROM unnest(CAST(:agents AS text[])) AS a(value) WHERE (
    SELECT h.place FROM heads h WHERE h.agent = a.value AND h.place > -1 AND h.ready_at IS NOT NULL ORDER BY h.place LIMIT 1) IS NOT NULL) AS in_line,
--[sqlite]   EXISTS (SELECT 1 FROM json_each(:agents) AS a WHERE (
--[postgres]   EXISTS (SELECT 1 FROM unnest(CAST(:agents AS text[])) AS a(value) WHERE (
    SELECT h.owner FROM heads h WHERE h.agent = a.value AND h.place < 0 ORDER BY h.owner LIMIT 1) IS NOT NULL) AS parked,
--[sqlite]   EXISTS (SELECT 1 FROM json_each(:agents) AS a WHERE (
--[postgres]   EXISTS (SELECT 1 FROM unnest(CAST(:agents AS text[])) AS a(value) WHERE (
    SELECT h.agent FROM heads h WHERE h.agent = a.value AND h.priority <> 0 AND h.ready_at IS NOT NULL LIMIT 1) IS NOT NULL) AS prioritized;

-- name: lock_line
-- Claims exclude one another while the number of running sessions is limited: each counts those of the others.
--[sqlite] SELECT 1 AS locked;
--[postgres] SELECT pg_advisory_xact_lock(1751741543) AS locked;

-- name: running
-- The cost depends on the number of running sessions. One that was acquired otherwise, such as that of a delegate, does not count.
SELECT agent, owner, count(*) AS sessions FROM heads WHERE holder > '' AND claimed = 1 GROUP BY agent, owner;

-- name: newly_ready
-- Those without a place, and what their places depend on. Nobody waits for a lock: a locked head is claimed or placed by another worker.
WITH entering AS MATERIALIZED (
  SELECT h.session_id, h.agent, h.owner, h.ready_at
--[sqlite]   FROM json_each(:agents) AS a CROSS JOIN heads h
--[sqlite]   WHERE h.session_id IN (
--[sqlite]     SELECT r.session_id FROM heads r WHERE r.agent = a.value AND r.place IS NULL AND r.ready_at <= now_us()
--[sqlite]     ORDER BY r.ready_at LIMIT :limit)
--[postgres]   FROM unnest(CAST(:agents AS text[])) AS a(value) CROSS JOIN LATERAL (
--[postgres]     SELECT r.session_id, r.agent, r.owner, r.ready_at FROM heads r
--[postgres]     WHERE r.agent = a.value AND r.place IS NULL AND r.ready_at <= (SELECT now_us())
--[postgres]     ORDER BY r.ready_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS h
), lines AS MATERIALIZED (
  SELECT e.agent, e.owner,
    (SELECT r.last_place FROM heads r WHERE r.agent = e.agent AND r.owner = e.owner AND r.last_place IS NOT NULL
      ORDER BY r.last_place DESC LIMIT 1) AS latest
  FROM (SELECT DISTINCT agent, owner FROM entering) AS e
), ends AS MATERIALIZED (
  SELECT e.agent, now_us() AS now,
    (SELECT r.place FROM heads r WHERE r.agent = e.agent AND r.place > -1 AND r.ready_at IS NOT NULL ORDER BY r.place LIMIT 1) AS lowest,
    (SELECT r.place FROM heads r WHERE r.agent = e.agent AND r.place > -1 AND r.ready_at IS NOT NULL ORDER BY r.place DESC LIMIT 1) AS highest
  FROM (SELECT DISTINCT agent FROM entering) AS e
)
SELECT e.session_id, e.agent, e.owner, l.latest, n.now, n.lowest, n.highest
FROM entering e JOIN lines l ON l.agent = e.agent AND l.owner = e.owner JOIN ends n ON n.agent = e.agent
ORDER BY e.ready_at;

-- name: set_places
UPDATE heads SET place = p.place, last_place = p.place
--[sqlite] FROM (SELECT value ->> 0 AS session_id, value ->> 1 AS place FROM json_each(:moves)) AS p
--[postgres] FROM unnest(CAST(:session_ids AS text[]), CAST(:places AS bigint[])) AS p(session_id, place)
WHERE heads.session_id = p.session_id;

-- name: line
-- The first sessions of each agent, in the order in which they are claimed: the first of each agent, then the second of each.
SELECT session_id, agent, owner, place FROM (
  SELECT h.session_id, h.agent, h.owner, h.place,
--[sqlite]     a.key AS turn, row_number() OVER (PARTITION BY a.key ORDER BY h.place, h.ready_at) AS nth
--[sqlite]   FROM json_each(:agents) AS a CROSS JOIN heads h
--[sqlite]   WHERE h.session_id IN (
--[sqlite]     SELECT r.session_id FROM heads r WHERE r.agent = a.value AND r.place > -1 AND r.ready_at IS NOT NULL
--[sqlite]     ORDER BY r.place, r.ready_at LIMIT :limit)
--[postgres]     a.turn, row_number() OVER (PARTITION BY a.turn ORDER BY h.place, h.ready_at) AS nth
--[postgres]   FROM unnest(CAST(:agents AS text[])) WITH ORDINALITY AS a(value, turn) CROSS JOIN LATERAL (
--[postgres]     SELECT r.* FROM heads r WHERE r.agent = a.value AND r.place > -1 AND r.ready_at <= (SELECT now_us())
--[postgres]     ORDER BY r.place, r.ready_at LIMIT :limit FOR UPDATE SKIP LOCKED) AS h
) AS first
ORDER BY nth, turn;

-- name: best_of_owner
SELECT session_id, place FROM heads WHERE agent = :agent AND owner = :owner AND place >= 0
ORDER BY priority DESC, ready_at LIMIT :limit
--[postgres] FOR UPDATE SKIP LOCKED
;

-- name: park
-- The sessions of an owner who runs as many as allowed leave the line, except those that are claimed now.
UPDATE heads SET place = -1 WHERE session_id IN (
  SELECT session_id FROM heads WHERE agent = :agent AND owner = :owner AND place >= 0
--[sqlite]     AND session_id NOT IN (SELECT value FROM json_each(:kept))
--[postgres]     AND NOT session_id = ANY(CAST(:kept AS text[]))
  ORDER BY priority DESC, ready_at LIMIT :limit
--[postgres]   FOR UPDATE SKIP LOCKED
);

-- name: parked_owners
-- Reads one entry of the index for each owner, however many sessions it has.
WITH RECURSIVE parked(agent, owner) AS (
--[sqlite]   SELECT a.value, (SELECT min(h.owner) FROM heads h WHERE h.agent = a.value AND h.place < 0) FROM json_each(:agents) AS a
--[postgres]   SELECT a.value, (SELECT min(h.owner) FROM heads h WHERE h.agent = a.value AND h.place < 0) FROM unnest(CAST(:agents AS text[])) AS a(value)
  UNION ALL
  SELECT p.agent, (SELECT min(h.owner) FROM heads h WHERE h.agent = p.agent AND h.place < 0 AND h.owner > p.owner)
  FROM parked p WHERE p.owner IS NOT NULL
)
SELECT agent, owner FROM parked WHERE owner IS NOT NULL;

-- name: unpark
-- They get a place like sessions that have just become ready.
UPDATE heads SET place = NULL WHERE session_id IN (
  SELECT session_id FROM heads WHERE agent = :agent AND owner = :owner AND place < 0
  ORDER BY priority DESC, ready_at LIMIT :limit
--[postgres]   FOR UPDATE SKIP LOCKED
);
