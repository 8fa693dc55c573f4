-- The second dialect, what brings a client back, and messages that can never be processed.

ALTER TABLE connections ADD COLUMN catalog_service_facts TEXT NOT NULL DEFAULT 'null'
    CHECK (json_valid(catalog_service_facts));
-- The latest sign of life that matters, and when the client said that it left: it is connected while
-- the sign is the later one. Signs may overtake farewells, and so each is remembered.
ALTER TABLE connections ADD COLUMN alive_at INTEGER;
ALTER TABLE connections ADD COLUMN left_at INTEGER;
-- Where in the queue the message stood that the row is of: what comes again from before it is a
-- repetition. Null without a queue.
ALTER TABLE connections ADD COLUMN queue_partition INTEGER;
ALTER TABLE connections ADD COLUMN queue_offset INTEGER;

ALTER TABLE departed ADD COLUMN catalog_service_facts TEXT NOT NULL DEFAULT 'null'
    CHECK (json_valid(catalog_service_facts));
ALTER TABLE departed ADD COLUMN queue_partition INTEGER;
ALTER TABLE departed ADD COLUMN queue_offset INTEGER;

CREATE TABLE dead_letters (
    id              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    -- '' where the topic is no client's.
    client_id       TEXT    NOT NULL,
    -- Of the topic and the whole payload: the same message again is counted, not kept twice.
    fingerprint     TEXT    NOT NULL,
    topic           TEXT    NOT NULL,
    -- Its beginning, if it was too large to keep.
    payload         BLOB    NOT NULL,
    size            INTEGER NOT NULL,
    sha256          TEXT    NOT NULL,
    reason          TEXT    NOT NULL,
    detail          TEXT    NOT NULL,
    times           INTEGER NOT NULL DEFAULT 1,
    first_received  INTEGER NOT NULL,
    last_received   INTEGER NOT NULL,
    -- When an operator asked for it to be processed again.
    replay_asked_at INTEGER,
    UNIQUE (client_id, fingerprint)
) STRICT;

CREATE INDEX dead_letters_last_received ON dead_letters (last_received);
CREATE INDEX dead_letters_replay ON dead_letters (replay_asked_at) WHERE replay_asked_at IS NOT NULL;
