-- Adds the tables of the liveness sweep. Both databases have the same column names. The PostgreSQL migration
-- 0016_liveness_sweep.sql describes the columns.

ALTER TABLE ingest_sessions ADD COLUMN session_started_at INTEGER;

CREATE TABLE recording_progress (
    queue           TEXT    NOT NULL,
    partition       INTEGER NOT NULL,
    partition_count INTEGER NOT NULL,
    processed_until INTEGER NOT NULL,
    stored_at       INTEGER NOT NULL,
    PRIMARY KEY (queue, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE liveness_sweep (
    name             TEXT NOT NULL PRIMARY KEY,
    completed_at     INTEGER,
    swept_restart_at INTEGER
) STRICT, WITHOUT ROWID;
INSERT INTO liveness_sweep (name) VALUES ('sweep');
