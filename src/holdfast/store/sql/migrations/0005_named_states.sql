-- The states of a session that have a name, for sessions with several agents. The state without one stays in `states`, whose key
-- the code of earlier schemas relies on while an upgrade is rolled out.

CREATE TABLE named_states (
  session_id    idtext NOT NULL,
  name          idtext NOT NULL,
  version       bigint NOT NULL,
  body          text NOT NULL,
  at            bigint NOT NULL,
  PRIMARY KEY (session_id, name)
);
