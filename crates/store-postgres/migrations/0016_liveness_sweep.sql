-- Adds what the liveness sweep needs: how far recording has processed the Kafka topics, the time since which
-- the broker has a session of `ingest`, and the state of the sweep.
--
-- The table connections does not change, so an update of a known client stays a HOT update. A process of an
-- earlier version continues to run. While all processes of the role `record` are of an earlier version, no
-- progress is known, and the sweep ends no connection.

SET LOCAL lock_timeout = '10s';

ALTER TABLE ingest_sessions ADD COLUMN session_started_at timestamptz;

CREATE TABLE recording_progress (
    queue           text COLLATE "C" NOT NULL,
    partition       integer          NOT NULL,
    partition_count integer          NOT NULL,
    processed_until timestamptz      NOT NULL,
    stored_at       timestamptz      NOT NULL,
    PRIMARY KEY (queue, partition)
) WITH (fillfactor = 50);

CREATE TABLE liveness_sweep (
    name             text        NOT NULL PRIMARY KEY,
    completed_at     timestamptz,
    swept_restart_at timestamptz
);
INSERT INTO liveness_sweep (name) VALUES ('sweep');

COMMENT ON COLUMN ingest_sessions.session_started_at IS
    'Time at which the broker had no stored session at a connection of ingest, for example after a restart.';
COMMENT ON COLUMN recording_progress.partition_count IS
    'Number of partitions of the topic when the row was stored.';
COMMENT ON COLUMN recording_progress.processed_until IS
    'Everything that the partition contained at this time, by the clock of the database, is recorded.';
COMMENT ON COLUMN liveness_sweep.completed_at IS
    'Start of the latest complete pass over all connections.';
COMMENT ON COLUMN liveness_sweep.swept_restart_at IS
    'Time of the latest broker restart that a complete pass has taken into account.';
