-- Adds the lease of the `ingest` process that may connect to the broker. The PostgreSQL migration
-- 0009_ingest_leases.sql describes the columns. `held_until` is a Unix time in seconds.

ALTER TABLE ingest_sessions ADD COLUMN holder TEXT;
ALTER TABLE ingest_sessions ADD COLUMN held_until INTEGER;
