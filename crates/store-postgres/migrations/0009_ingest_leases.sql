-- Adds the lease of the `ingest` process that may connect to the broker. A process of an older version
-- ignores the new columns and continues to run.

SET LOCAL lock_timeout = '10s';

ALTER TABLE ingest_sessions
    ADD COLUMN holder text,
    ADD COLUMN held_until timestamptz;

COMMENT ON COLUMN ingest_sessions.holder IS
    'Process that may connect with this session: host name and HTTP address.';
COMMENT ON COLUMN ingest_sessions.held_until IS
    'Time at which another process may take over. Null if the holder has stopped.';
