-- The named states of a session, for sessions with several agents. The unnamed state stays in `states`, on whose key
-- the code of earlier schemas depends during a rolling upgrade.

CREATE TABLE named_states (
  session_id    idtext NOT NULL,
  name          idtext NOT NULL,
  version       bigint NOT NULL,
  body          text NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (session_id, name)
);
