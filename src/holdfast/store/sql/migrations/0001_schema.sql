-- The tables of sessions.
--
-- A session has two rows. `sessions` is for lists and searches; it is indexed and rarely written. `heads` is
-- narrow and hot: the epoch of the newest lease, the number of the last event, the holder of the lease. Every write to
-- a session first updates its head under its epoch. This is both the fence and the numbering: no row means that the lease is lost
-- and nothing happens; with a row, the numbers are taken in commit order, since the row stays locked until the commit.
--
-- The states of a submission: queued -> claimed -> done, failed or dead; or waiting, for a named thing; or back to
-- queued when its holder died. A free session with a pending submission has `ready_at` in its head, so that
-- the cost of finding the next session depends on the number of ready sessions, not of all sessions.
--
-- The history is a tree of segments. `messages.position` is a message's index in the whole history, so a checkpoint
-- (segment, length) reads its own segment from `start`, and the positions before that from its parent.
--
-- There are no foreign keys: one writer per session, fenced by its head, cannot leave orphans, and
-- `holdfast db check` proves it. Times are microseconds since 1970, UTC, taken from the database's clock by
-- now_us(). JSON is text, exactly as it was serialized. Lines marked [sqlite] or [postgres] are for that engine.

--[postgres] CREATE DOMAIN idtext AS text COLLATE "C";
--[postgres] CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
--[postgres]   'SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint';

CREATE TABLE sessions (
  id            idtext PRIMARY KEY,
  agent         text NOT NULL,
  owner         text NOT NULL,
  title         text NOT NULL,
  title_folded  text NOT NULL,        -- the title in lower case, for search
  status        text NOT NULL,        -- as last set by the holder; checked against the lease on reading
  waiting_for   text,
  hold          integer NOT NULL,     -- 1: retention must not touch it
  admin_hold    integer NOT NULL DEFAULT 0,   -- 1: an administrator set the hold, and only one can lift it
  metadata      text NOT NULL,
  created_at    bigint NOT NULL,
  active_at     bigint NOT NULL,
  cleaned_at    bigint,               -- when the deletion of its content began
  resting       text,                 -- the status before it was being cleaned
  archive       idtext,               -- SHA-256 of its archive, which keeps that blob alive
  rehydrated_at bigint,               -- when it was last restored: retention skips it for a grace period after that
  -- Keyed digests of the title, metadata and cursors of a cleaned session, which recognize an archive made before their last change.
  -- The key is the last event, which is deleted, so the digests reveal nothing.
  fingerprint   text
)
--[sqlite] WITHOUT ROWID
;
CREATE INDEX sessions_active ON sessions (active_at, id);
CREATE INDEX sessions_agent ON sessions (agent, active_at, id);
CREATE INDEX sessions_owner ON sessions (owner, active_at, id);
-- Without the idle ones, which are most: a list of those that run or wait must not read all of them.
CREATE INDEX sessions_status ON sessions (status, active_at, id) WHERE status <> 'idle';
CREATE INDEX sessions_archive ON sessions (archive) WHERE archive IS NOT NULL;
-- For the sweep, each in the order in which sessions become due: idle, old, and cleaned but not erased.
CREATE INDEX sessions_retention ON sessions (agent, active_at, id) WHERE status <> 'cleaned' AND hold = 0;
CREATE INDEX sessions_age ON sessions (agent, created_at, id) WHERE status <> 'cleaned' AND hold = 0;
CREATE INDEX sessions_cleaned ON sessions (agent, created_at, id) WHERE status = 'cleaned' AND hold = 0;

-- The ids of erased sessions, which are never used again.
CREATE TABLE tombstones (
  session_id    idtext PRIMARY KEY,
  at            bigint NOT NULL
)
--[sqlite] WITHOUT ROWID
;

CREATE TABLE heads (
  session_id    idtext PRIMARY KEY,
  agent         text NOT NULL,        -- that of the session, so that a worker finds the ready sessions of its agents
  epoch         bigint NOT NULL,
  seq           bigint NOT NULL,
  holder        idtext,
  tenure        idtext,               -- the id of the newest lease, to recognize a claim whose response was lost
  orphaned_by   idtext,               -- the holder that died with it, until it is released cleanly
  writes        bigint NOT NULL,      -- batches written under this epoch
  written       bigint NOT NULL,      -- seq after the last of them
  ready_at      bigint,
  watched_at    bigint                -- when it was last watched; only for attached sessions
)
--[sqlite] WITHOUT ROWID
--[postgres] WITH (fillfactor = 50)
;
CREATE INDEX heads_ready ON heads (ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX heads_ready_by_agent ON heads (agent, ready_at) WHERE ready_at IS NOT NULL;
CREATE INDEX heads_holder ON heads (holder, tenure) WHERE holder IS NOT NULL;

CREATE TABLE holders (
  id            idtext PRIMARY KEY,
  name          text NOT NULL,
  ttl_us        bigint NOT NULL,
  deadline      bigint NOT NULL,
  joined_at     bigint NOT NULL,
  beacon        integer NOT NULL,     -- 1: it holds a lock that reveals when its process has exited
  agents        text NOT NULL         -- whose sessions it claims: a session of an agent without a holder waits for a worker
)
--[sqlite] WITHOUT ROWID
;

-- Tasks that one holder at a time performs for all, such as the sweep. A duty is free when its holder is dead.
CREATE TABLE duties (
  name          idtext PRIMARY KEY,
  holder        idtext,
  taken_at      bigint NOT NULL,
  done_at       bigint,               -- when it was last completed
  detail        text NOT NULL         -- the result of that
)
--[sqlite] WITHOUT ROWID
;

CREATE TABLE submissions (
  session_id       idtext NOT NULL,
  position         bigint NOT NULL,
  id               idtext NOT NULL,
  kind             text NOT NULL,
  lane             text NOT NULL,
  when_busy        text NOT NULL,
  payload          text NOT NULL,
  idempotency_key  text,
  state            text NOT NULL,
  attempts         bigint NOT NULL,
  reason           text,
  run_id           idtext,
  created_at       bigint NOT NULL,
  started_at       bigint,
  ended_at         bigint,
  trace            text,
  PRIMARY KEY (session_id, position)
);
CREATE UNIQUE INDEX submissions_id ON submissions (id);
CREATE UNIQUE INDEX submissions_key ON submissions (session_id, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE INDEX submissions_open ON submissions (session_id, lane, position) WHERE ended_at IS NULL;
CREATE INDEX submissions_ended ON submissions (ended_at, session_id, position) WHERE ended_at IS NOT NULL;

CREATE TABLE runs (
  session_id    idtext NOT NULL,
  id            idtext NOT NULL,
  parent_id     idtext,
  agent         text NOT NULL,
  status        text NOT NULL,
  error         text,
  metadata      text NOT NULL,
  first_seq     bigint NOT NULL,      -- the session's seq when it started: runs are listed in this order
  started_at    bigint NOT NULL,
  ended_at      bigint,
  PRIMARY KEY (session_id, id)
)
--[sqlite] WITHOUT ROWID
;
CREATE UNIQUE INDEX runs_id ON runs (id);
CREATE INDEX runs_order ON runs (session_id, first_seq, id);
CREATE INDEX runs_started ON runs (started_at, id);
CREATE INDEX runs_interrupted ON runs (started_at, id) WHERE status IN ('running', 'interrupted');
CREATE INDEX runs_parent ON runs (parent_id, started_at, id) WHERE parent_id IS NOT NULL;

CREATE TABLE events (
  session_id    idtext NOT NULL,
  seq           bigint NOT NULL,
  kind          text NOT NULL,
  run_id        idtext,
  step          bigint,
  at            bigint NOT NULL,
  payload       text NOT NULL,
  segment       bigint,
  position      bigint,
  PRIMARY KEY (session_id, seq)
)
--[sqlite] WITHOUT ROWID
;

CREATE
--[postgres] UNLOGGED
TABLE drafts (
  session_id    idtext NOT NULL,
  run_id        idtext NOT NULL,
  part          bigint NOT NULL,
  kind          text NOT NULL,
  body          text NOT NULL,
  follows       bigint NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (session_id, run_id, part)
);

CREATE TABLE segments (
  session_id    idtext NOT NULL,
  number        bigint NOT NULL,
  parent        bigint,
  start         bigint NOT NULL,
  PRIMARY KEY (session_id, number)
)
--[sqlite] WITHOUT ROWID
;

CREATE TABLE messages (
  session_id    idtext NOT NULL,
  segment       bigint NOT NULL,
  position      bigint NOT NULL,
  body          text NOT NULL,
  PRIMARY KEY (session_id, segment, position)
);

CREATE TABLE checkpoints (
  session_id    idtext NOT NULL,
  id            idtext NOT NULL,
  run_id        idtext,
  step          bigint,
  kind          text NOT NULL,
  segment       bigint NOT NULL,
  length        bigint NOT NULL,
  seq           bigint NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (session_id, seq, id)
)
--[sqlite] WITHOUT ROWID
;
CREATE UNIQUE INDEX checkpoints_id ON checkpoints (id);

CREATE TABLE effects (
  session_id        idtext NOT NULL,
  run_id            idtext NOT NULL,
  call_id           idtext NOT NULL,
  tool              text NOT NULL,
  state             text NOT NULL,
  step              bigint,
  arguments_digest  text,
  idempotency_key   text,
  result            text,             -- until it moves into the message (segment, position)
  error             text,
  summary           text,
  segment           bigint,
  position          bigint,
  attempts          bigint NOT NULL,
  started_at        bigint NOT NULL,
  ended_at          bigint,
  PRIMARY KEY (session_id, run_id, call_id)
)
--[sqlite] WITHOUT ROWID
;
CREATE INDEX effects_order ON effects (session_id, started_at, run_id, call_id);
CREATE INDEX effects_unresolved ON effects (session_id, run_id) WHERE ended_at IS NULL;

CREATE TABLE cursors (
  session_id    idtext NOT NULL,
  consumer      idtext NOT NULL,
  seq           bigint NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (session_id, consumer)
)
--[sqlite] WITHOUT ROWID
;

CREATE TABLE states (
  session_id    idtext PRIMARY KEY,
  version       bigint NOT NULL,
  body          text NOT NULL,
  at            bigint NOT NULL
);

-- The named states of a session, for sessions with several agents.
CREATE TABLE named_states (
  session_id    idtext NOT NULL,
  name          idtext NOT NULL,
  version       bigint NOT NULL,
  body          text NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (session_id, name)
);

-- Small rows with a key, for what other frameworks store.
CREATE TABLE records (
  session_id    idtext NOT NULL,
  kind          idtext NOT NULL,
  key           idtext NOT NULL,
  body          text NOT NULL,
  seq           bigint NOT NULL,      -- the session's event number when it was last written
  PRIMARY KEY (session_id, kind, key)
);

-- Secrets that tools need to act for the session's owner, encrypted with a key that the database never receives.
CREATE TABLE credentials (
  session_id    idtext NOT NULL,
  name          idtext NOT NULL,
  sealed        text NOT NULL,
  expires_at    bigint,
  PRIMARY KEY (session_id, name)
)
--[sqlite] WITHOUT ROWID
;

CREATE TABLE audit (
  id            idtext PRIMARY KEY,
  at            bigint NOT NULL,
  actor         text NOT NULL,
  action        text NOT NULL,
  session_id    idtext,
  detail        text NOT NULL
)
--[sqlite] WITHOUT ROWID
;
CREATE INDEX audit_session ON audit (session_id, id);

CREATE TABLE tokens (
  id            idtext PRIMARY KEY,
  digest        text NOT NULL,        -- SHA-256 of the token; the token itself is not stored
  owner         text NOT NULL,
  role          text NOT NULL,
  scopes        text NOT NULL,        -- separated by spaces
  created_at    bigint NOT NULL,
  expires_at    bigint,
  revoked_at    bigint
);
CREATE UNIQUE INDEX tokens_digest ON tokens (digest);

-- The register of all media stores, for bytes in blob_chunks, in files or in a bucket. `id` identifies one upload
-- and is part of the key of its bytes, so that no key is ever used twice and a late deletion cannot delete newer bytes.
CREATE TABLE blobs (
  id            idtext PRIMARY KEY,
  location      text NOT NULL,        -- the media store that has the bytes
  sha256        idtext,               -- NULL while they are streamed in
  state         text NOT NULL,        -- storing -> stored -> deleting
  key           text NOT NULL,        -- the place in it
  size          bigint NOT NULL,
  media_type    text NOT NULL,
  file_name     text,
  metadata      text NOT NULL,
  at            bigint NOT NULL       -- when the same content was last uploaded
)
--[sqlite] WITHOUT ROWID
;
CREATE UNIQUE INDEX blobs_stored ON blobs (sha256, location) WHERE state = 'stored';
CREATE INDEX blobs_location ON blobs (location, id);
CREATE TABLE blob_chunks (
  blob_id       idtext NOT NULL,
  number        bigint NOT NULL,
  body          bytea NOT NULL,
  PRIMARY KEY (blob_id, number)
);
--[postgres] ALTER TABLE blob_chunks ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE TABLE blob_references (
  session_id    idtext NOT NULL,
  sha256        idtext NOT NULL,
  PRIMARY KEY (session_id, sha256)
)
--[sqlite] WITHOUT ROWID
;
CREATE INDEX blob_references_blob ON blob_references (sha256);

-- A command's row counts its outputs, which fences and numbers them like a head does for events.
-- It is kept longer than its output: a purge empties `command` and `cwd`, and keeps the result.
CREATE TABLE commands (
  id              idtext PRIMARY KEY,
  session_id      idtext,
  owner           text NOT NULL,
  call_id         text,               -- the tool call that started it
  command         text NOT NULL,
  cwd             text,
  timeout_us      bigint,
  holder          idtext NOT NULL,    -- the service that runs it
  host            text NOT NULL,      -- the scope in which `pid` is valid
  pid             bigint NOT NULL,    -- of its keeper, which is the leader of its process session
  pid_started     bigint,             -- in ticks since the host booted, to detect a reused pid
  state           text NOT NULL,
  stop_requested  integer NOT NULL,
  exit_code       bigint,
  outputs         bigint NOT NULL,    -- how many were written, and the number of the next one
  stdout_bytes    bigint NOT NULL,    -- as the command wrote them, kept or not
  stderr_bytes    bigint NOT NULL,
  left_out_bytes  bigint NOT NULL,
  damaged         integer NOT NULL,   -- 1: invalid bytes were replaced
  started_at      bigint NOT NULL,
  last_at         bigint NOT NULL,    -- of its last event; each is later than the previous one
  ended_at        bigint,
  purged_at       bigint
);
CREATE INDEX commands_log ON commands (started_at, id) WHERE purged_at IS NULL;
CREATE INDEX commands_owner ON commands (owner, started_at, id) WHERE purged_at IS NULL;
CREATE INDEX commands_running ON commands (id) WHERE ended_at IS NULL;
CREATE INDEX commands_ended ON commands (ended_at, id) WHERE ended_at IS NOT NULL AND purged_at IS NULL;
CREATE INDEX commands_session ON commands (session_id, id) WHERE session_id IS NOT NULL;

CREATE TABLE outputs (
  command_id    idtext NOT NULL,
  number        bigint NOT NULL,
  session_id    idtext,
  owner         text NOT NULL,        -- its command's, so that each owner's log is an index scan
  id            idtext NOT NULL,
  stdout        text,
  stderr        text,
  exit_code     bigint,               -- only in the last one
  damaged       integer NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (command_id, number)
);
CREATE UNIQUE INDEX outputs_id ON outputs (id);
CREATE INDEX outputs_log ON outputs (at, id);
CREATE INDEX outputs_owner ON outputs (owner, at, id);
CREATE INDEX outputs_session ON outputs (session_id, command_id, number) WHERE session_id IS NOT NULL;
