-- The agents that each worker serves: a session of any other agent shows that it waits for a worker. NULL in rows of code from
-- before schema 3. Also indexes to find runs in all sessions: the newest, the interrupted, and those with calls of unknown outcome.

ALTER TABLE sessions ADD COLUMN admin_hold integer NOT NULL DEFAULT 0;  -- 1: an administrator set the hold, and only one can lift it
ALTER TABLE holders ADD COLUMN agents text;
CREATE INDEX runs_started ON runs (started_at, id);
CREATE INDEX runs_interrupted ON runs (started_at, id) WHERE status IN ('running', 'interrupted');
CREATE INDEX effects_unresolved ON effects (session_id, run_id) WHERE ended_at IS NULL;
