-- name: session_budgets
-- The budgets that may apply to a turn, with the current day.
SELECT b.*, now_us() / 86400000000 AS today FROM budgets b
WHERE b.per = 'turn' AND b.name = :session_id OR b.per = 'session' AND b.name = :session_id OR b.per = 'owner' AND b.name = :owner
  OR b.per = 'agent' AND b.name = :agent OR b.per = 'store' AND b.name = '';

-- name: budgets
SELECT b.*, now_us() / 86400000000 AS today FROM budgets b
WHERE b.set_at IS NOT NULL
  AND b.per = :per     --? per
  AND b.name = :name   --? name
  AND (b.per, b.name, b.daily) > (:after_per, :after_name, :after_daily)   --? paged
ORDER BY b.per, b.name, b.daily LIMIT :limit;

-- name: open_budget
-- Begins with what was used before. A row that exists is left unchanged.
INSERT INTO budgets (per, name, daily, period, requests, tokens, cost_nanos, working_us, changed_at)
SELECT :per, :name, :daily, CASE WHEN :daily = 1 THEN CAST(now_us() / 86400000000 AS text) ELSE :turn END,
  CAST(coalesce(sum(u.requests), 0) AS bigint), CAST(coalesce(sum(u.input_tokens + u.output_tokens), 0) AS bigint),
  CAST(coalesce(sum(u.cost_nanos), 0) AS bigint), CAST(coalesce(sum(u.working_us), 0) AS bigint), now_us()
FROM usage u
WHERE u.session_id > ''
  AND u.day >= (SELECT now_us() / 86400000000)   --? of_day
  AND u.session_id = :of_session   --? of_session
  AND u.owner = :of_owner          --? of_owner
  AND u.agent = :of_agent          --? of_agent
  AND 1 = 0                        --? of_turn
ON CONFLICT (per, name, daily) DO NOTHING;

-- name: set_budget
UPDATE budgets SET most_requests = :most_requests, most_tokens = :most_tokens, most_cost_nanos = :most_cost_nanos,
  most_working_us = :most_working_us, changed_at = now_us(), set_at = CASE WHEN CAST(:is_set AS int) = 1 THEN now_us() END
WHERE per = :per AND name = :name AND daily = :daily
RETURNING *, now_us() / 86400000000 AS today;

-- name: waiting_for_budgets
SELECT s.id, s.active_at FROM sessions s
WHERE s.status IN ('sleeping', 'waiting') AND s.waiting_for LIKE '%budget of%' AND s.active_at <= :before
  AND s.id = :of_session     --? of_session
  AND s.owner = :of_owner    --? of_owner
  AND s.agent = :of_agent    --? of_agent
  AND (s.active_at, s.id) > (:after_at, :after_id)
ORDER BY s.active_at, s.id LIMIT :limit;

-- name: wake_turn
UPDATE submissions SET deliver_at = now_us() WHERE session_id = :session_id AND ended_at IS NULL AND state = 'waiting'
RETURNING position;

-- name: wake_head
UPDATE heads SET ready_at = now_us() WHERE session_id = :session_id AND holder IS NULL;

-- name: drop_budgets
DELETE FROM budgets WHERE set_at IS NULL AND changed_at < now_us() - 86400000000 * :days AND (per, name, daily) IN (
  SELECT per, name, daily FROM budgets WHERE set_at IS NULL AND changed_at < now_us() - 86400000000 * :days ORDER BY changed_at LIMIT :limit
)
RETURNING per;
