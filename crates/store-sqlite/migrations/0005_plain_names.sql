-- Renames tables, columns and indexes to the project's vocabulary. The only rows that are rewritten
-- are dead letters whose reason has a new name. Both databases have the same column names. The file
-- migrations/postgres/0005_plain_names.sql describes the columns.

ALTER TABLE connections RENAME COLUMN last_seen TO online_received_at;
ALTER TABLE connections RENAME COLUMN alive_at TO last_heartbeat_at;
ALTER TABLE connections RENAME COLUMN left_at TO offline_received_at;
ALTER TABLE connections RENAME COLUMN can_be_announced TO inventory_eligible;
ALTER TABLE connections RENAME COLUMN claimed_until TO lookup_claimed_until;

-- SQLite cannot rename an index. The migration therefore drops the index and creates it with the
-- new name.
DROP INDEX connections_stale;
CREATE INDEX connections_inventory_refresh ON connections (stale_timestamp)
    WHERE org_id <> '' AND inventory_eligible;

ALTER TABLE departed RENAME TO disconnected_clients;
ALTER TABLE disconnected_clients RENAME COLUMN departed_at TO disconnected_at;
DROP INDEX departed_departed_at;
CREATE INDEX disconnected_clients_disconnected_at ON disconnected_clients (disconnected_at);

ALTER TABLE dead_letters RENAME COLUMN times TO occurrences;
ALTER TABLE dead_letters RENAME COLUMN replay_asked_at TO replay_requested_at;
UPDATE dead_letters SET reason = CASE reason
        WHEN 'not_json' THEN 'invalid_json'
        WHEN 'wrong_shape' THEN 'invalid_schema'
        WHEN 'characters' THEN 'invalid_characters'
        WHEN 'too_long' THEN 'value_too_long'
        WHEN 'too_large' THEN 'payload_too_large'
        WHEN 'refused' THEN 'rejected_by_database'
        ELSE reason END
 WHERE reason IN ('not_json', 'wrong_shape', 'characters', 'too_long', 'too_large', 'refused');
