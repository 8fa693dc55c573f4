-- Adds the times and the reason of presence changes to the row of a client, and the history of the changes.
-- Both databases have the same column names. The file
-- crates/store-postgres/migrations/0014_presence_history.sql describes the columns.

ALTER TABLE connections ADD COLUMN connected_since INTEGER;
ALTER TABLE connections ADD COLUMN last_seen INTEGER;
ALTER TABLE connections ADD COLUMN reconnects INTEGER NOT NULL DEFAULT 0;
ALTER TABLE connections ADD COLUMN hourly_reconnects INTEGER NOT NULL DEFAULT 0;
ALTER TABLE connections ADD COLUMN hourly_reconnects_since INTEGER;
ALTER TABLE connections ADD COLUMN transition_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE connections ADD COLUMN content_hashes TEXT;

ALTER TABLE disconnected_clients ADD COLUMN connected_since INTEGER;
ALTER TABLE disconnected_clients ADD COLUMN last_seen INTEGER;
ALTER TABLE disconnected_clients ADD COLUMN reconnects INTEGER NOT NULL DEFAULT 0;
ALTER TABLE disconnected_clients ADD COLUMN hourly_reconnects INTEGER NOT NULL DEFAULT 0;
ALTER TABLE disconnected_clients ADD COLUMN hourly_reconnects_since INTEGER;
ALTER TABLE disconnected_clients ADD COLUMN transition_count INTEGER NOT NULL DEFAULT 0;
ALTER TABLE disconnected_clients ADD COLUMN content_hashes TEXT;
ALTER TABLE disconnected_clients ADD COLUMN reason TEXT;

CREATE TABLE presence_history (
    client_id TEXT    NOT NULL,
    number    INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    org_id    TEXT    NOT NULL,
    status    TEXT    NOT NULL,
    reason    TEXT    NOT NULL,
    PRIMARY KEY (client_id, number)
) STRICT, WITHOUT ROWID;

-- Finds the expired rows.
CREATE INDEX presence_history_at ON presence_history (at);
