-- A session's agent, which never changes, in its head as well: then whoever works for some agents finds what is ready for
-- them without reading past what is ready for others.

ALTER TABLE heads ADD COLUMN agent text NOT NULL DEFAULT '';
UPDATE heads SET agent = coalesce((SELECT s.agent FROM sessions s WHERE s.id = heads.session_id), '');
CREATE INDEX heads_ready_by_agent ON heads (agent, ready_at) WHERE ready_at IS NOT NULL;
