-- Sessions by status, without the idle ones, which are most: a list of those that run or wait must not read all of them.

CREATE INDEX sessions_status ON sessions (status, active_at, id) WHERE status <> 'idle';
