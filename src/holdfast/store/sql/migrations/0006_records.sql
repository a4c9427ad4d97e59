-- The records of a session: small rows with a key, for what other frameworks store. `seq` is the session's event number when a
-- record was last written.

CREATE TABLE records (
  session_id    idtext NOT NULL,
  kind          idtext NOT NULL,
  key           idtext NOT NULL,
  body          text NOT NULL,
  seq           bigint NOT NULL,
  PRIMARY KEY (session_id, kind, key)
);
