-- name: usage
-- A page continues after a group, whose values are compared in the order of the groups; what it is not grouped by counts as equal.
SELECT
  CAST(sum(u.requests) AS bigint) AS requests, CAST(sum(u.unpriced) AS bigint) AS unpriced,
  CAST(sum(u.input_tokens) AS bigint) AS input_tokens, CAST(sum(u.output_tokens) AS bigint) AS output_tokens,
  CAST(sum(u.cache_read_tokens) AS bigint) AS cache_read_tokens, CAST(sum(u.cache_write_tokens) AS bigint) AS cache_write_tokens,
  CAST(sum(u.cost_nanos) AS bigint) AS cost_nanos, CAST(sum(u.tool_calls) AS bigint) AS tool_calls,
  CAST(sum(u.working_us) AS bigint) AS working_us
  , u.day          --? by_day
  , u.owner        --? by_owner
  , u.agent        --? by_agent
  , u.model        --? by_model
  , u.session_id   --? by_session_id
FROM usage u
WHERE u.day >= :first AND u.day < :end
  AND u.owner = :owner             --? owner
  AND u.session_id = :session_id   --? session_id
  AND u.agent = :agent             --? agent
  AND u.model = :model             --? model
  AND (CASE WHEN :has_day = 1 THEN u.day ELSE 0 END, CASE WHEN :has_owner = 1 THEN u.owner ELSE '' END, CASE WHEN :has_agent = 1 THEN u.agent ELSE '' END, CASE WHEN :has_model = 1 THEN u.model ELSE '' END, CASE WHEN :has_session_id = 1 THEN u.session_id ELSE '' END) > (:after_day, :after_owner, :after_agent, :after_model, :after_session_id)   --? paged
GROUP BY u.requests IS NULL
  , u.day          --? by_day
  , u.owner        --? by_owner
  , u.agent        --? by_agent
  , u.model        --? by_model
  , u.session_id   --? by_session_id
ORDER BY u.requests IS NULL
  , u.day          --? by_day
  , u.owner        --? by_owner
  , u.agent        --? by_agent
  , u.model        --? by_model
  , u.session_id   --? by_session_id
LIMIT :limit;

-- name: drop_usage
DELETE FROM usage WHERE day < now_us() / 86400000000 - :days AND (session_id, day, agent, model) IN (
  SELECT session_id, day, agent, model FROM usage WHERE day < now_us() / 86400000000 - :days ORDER BY day LIMIT :limit
)
RETURNING day;

-- name: merge_usage
-- A copy may find the sums of an earlier copy: the greater ones are the later ones.
INSERT INTO usage (session_id, day, agent, model, owner, requests, unpriced, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_nanos, tool_calls, working_us)
VALUES (:session_id, :day, :agent, :model, :owner, :requests, :unpriced, :input_tokens, :output_tokens, :cache_read_tokens, :cache_write_tokens, :cost_nanos, :tool_calls, :working_us)
ON CONFLICT (session_id, day, agent, model) DO UPDATE SET
  requests = CASE WHEN excluded.requests > usage.requests THEN excluded.requests ELSE usage.requests END,
  unpriced = CASE WHEN excluded.unpriced > usage.unpriced THEN excluded.unpriced ELSE usage.unpriced END,
  input_tokens = CASE WHEN excluded.input_tokens > usage.input_tokens THEN excluded.input_tokens ELSE usage.input_tokens END,
  output_tokens = CASE WHEN excluded.output_tokens > usage.output_tokens THEN excluded.output_tokens ELSE usage.output_tokens END,
  cache_read_tokens = CASE WHEN excluded.cache_read_tokens > usage.cache_read_tokens THEN excluded.cache_read_tokens ELSE usage.cache_read_tokens END,
  cache_write_tokens = CASE WHEN excluded.cache_write_tokens > usage.cache_write_tokens THEN excluded.cache_write_tokens ELSE usage.cache_write_tokens END,
  cost_nanos = CASE WHEN excluded.cost_nanos > usage.cost_nanos THEN excluded.cost_nanos ELSE usage.cost_nanos END,
  tool_calls = CASE WHEN excluded.tool_calls > usage.tool_calls THEN excluded.tool_calls ELSE usage.tool_calls END,
  working_us = CASE WHEN excluded.working_us > usage.working_us THEN excluded.working_us ELSE usage.working_us END;
