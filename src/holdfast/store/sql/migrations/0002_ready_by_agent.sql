-- The head also has the session's agent, which never changes, so that a worker finds the ready sessions of its agents
-- without reading those of other agents.

ALTER TABLE heads ADD COLUMN agent text NOT NULL DEFAULT '';
UPDATE heads SET agent = coalesce((SELECT s.agent FROM sessions s WHERE s.id = heads.session_id), '');
CREATE INDEX heads_ready_by_agent ON heads (agent, ready_at) WHERE ready_at IS NOT NULL;
