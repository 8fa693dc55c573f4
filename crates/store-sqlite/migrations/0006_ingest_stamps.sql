-- Adds the epochs of `ingest`, and the ingest stamps of the latest presence message and the latest
-- heartbeat. Both databases have the same column names. The PostgreSQL migration
-- 0006_ingest_stamps.sql describes the columns.

CREATE TABLE ingest_sessions (
    session INTEGER PRIMARY KEY,
    name    TEXT    NOT NULL UNIQUE,
    epoch   INTEGER NOT NULL
) STRICT;

ALTER TABLE connections ADD COLUMN presence_session INTEGER;
ALTER TABLE connections ADD COLUMN presence_epoch INTEGER;
ALTER TABLE connections ADD COLUMN presence_sequence INTEGER;
ALTER TABLE connections ADD COLUMN heartbeat_session INTEGER;
ALTER TABLE connections ADD COLUMN heartbeat_epoch INTEGER;
ALTER TABLE connections ADD COLUMN heartbeat_sequence INTEGER;

ALTER TABLE disconnected_clients ADD COLUMN presence_session INTEGER;
ALTER TABLE disconnected_clients ADD COLUMN presence_epoch INTEGER;
ALTER TABLE disconnected_clients ADD COLUMN presence_sequence INTEGER;
