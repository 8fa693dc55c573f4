-- Adds the events of organizations. SQLite has one writer at a time, so the position of an event is its row id:
-- events become visible in the order of their positions.

CREATE TABLE events (
    position             INTEGER PRIMARY KEY AUTOINCREMENT,
    at                   INTEGER NOT NULL,
    type                 TEXT    NOT NULL,
    org_id               TEXT    NOT NULL,
    account              TEXT    NOT NULL,
    client_id            TEXT    NOT NULL,
    data                 TEXT    NOT NULL CHECK (json_valid(data)),
    previous_dispatchers TEXT
) STRICT;

CREATE INDEX events_org_id_position ON events (org_id, position);
