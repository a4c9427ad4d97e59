-- name: schedules
-- With the outcome of the last submission, unless retention has deleted it.
SELECT s.*, q.state AS last_state, q.reason AS last_reason
FROM schedules s LEFT JOIN submissions q ON q.id = s.last_submission_id
WHERE s.id > ''
  AND s.id = :id         --? id
  AND s.owner = :owner   --? owner
  AND s.id > :after      --? after
ORDER BY s.id LIMIT :limit;
