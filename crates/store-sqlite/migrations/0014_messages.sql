-- Adds the records of tracked messages (decision 035). Both databases have the same column names. The file
-- crates/store-postgres/migrations/0017_messages.sql describes the columns.

CREATE TABLE bulks (
    id             TEXT    NOT NULL PRIMARY KEY,
    org_id         TEXT    NOT NULL,
    account        TEXT    NOT NULL,
    caller         TEXT    NOT NULL,
    directive      TEXT    NOT NULL,
    metadata       TEXT,
    payload        TEXT,
    request        TEXT    NOT NULL,
    state          TEXT    NOT NULL,
    total          INTEGER,
    prepared_up_to TEXT,
    rate           INTEGER NOT NULL,
    queue_seconds  INTEGER,
    created_at     INTEGER NOT NULL,
    started_at     INTEGER,
    finished_at    INTEGER,
    lease_until    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX bulks_org_id ON bulks (org_id, id);

CREATE TABLE messages (
    id               TEXT    NOT NULL PRIMARY KEY,
    org_id           TEXT    NOT NULL,
    account          TEXT    NOT NULL,
    client_id        TEXT    NOT NULL,
    client_org_id    TEXT    NOT NULL,
    caller           TEXT    NOT NULL,
    directive        TEXT    NOT NULL,
    state            TEXT    NOT NULL,
    reason           TEXT,
    bulk_id          TEXT,
    attempts         INTEGER NOT NULL DEFAULT 0,
    may_be_duplicate INTEGER NOT NULL DEFAULT 0,
    created_at       INTEGER NOT NULL,
    sent_at          INTEGER,
    acknowledged_at  INTEGER,
    answered_at      INTEGER,
    ended_at         INTEGER,
    final_at         INTEGER,
    expires_at       INTEGER,
    lease_until      INTEGER,
    answer           TEXT,
    answer_truncated INTEGER NOT NULL DEFAULT 0,
    answer_count     INTEGER NOT NULL DEFAULT 0,
    queue_number     INTEGER,
    metadata         TEXT,
    payload          TEXT,
    payload_bytes    INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE INDEX messages_org_id ON messages (org_id, id);
CREATE INDEX messages_client_id ON messages (client_id, id);
CREATE INDEX messages_bulk_id ON messages (bulk_id, client_id) WHERE bulk_id IS NOT NULL;
CREATE INDEX messages_final_at ON messages (final_at) WHERE final_at IS NOT NULL;
CREATE INDEX messages_lease_until ON messages (lease_until) WHERE state = 'sending';
CREATE INDEX messages_queue ON messages (client_id, queue_number) WHERE state IN ('queued', 'sending');
CREATE INDEX messages_expires_at ON messages (expires_at) WHERE state = 'queued';

CREATE TABLE message_queues (
    client_id   TEXT    NOT NULL PRIMARY KEY,
    last_number INTEGER NOT NULL DEFAULT 0,
    release_at  INTEGER,
    lease_until INTEGER,
    holder      TEXT,
    retries     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX message_queues_release_at ON message_queues (release_at) WHERE release_at IS NOT NULL;

CREATE TABLE idempotency_keys (
    org_id            TEXT    NOT NULL,
    caller            TEXT    NOT NULL,
    key               TEXT    NOT NULL,
    request_hash      TEXT    NOT NULL,
    message_id        TEXT,
    bulk_id           TEXT,
    in_progress_until INTEGER NOT NULL,
    expires_at        INTEGER NOT NULL,
    status            INTEGER,
    body              TEXT,
    PRIMARY KEY (org_id, caller, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at);

-- SQLite has one writer at a time, so all rows have shard 0.
CREATE TABLE message_counters (
    org_id       TEXT    NOT NULL,
    shard        INTEGER NOT NULL,
    messages     INTEGER NOT NULL,
    queued       INTEGER NOT NULL,
    queued_bytes INTEGER NOT NULL,
    PRIMARY KEY (org_id, shard)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER count_inserted_messages AFTER INSERT ON messages BEGIN
    INSERT INTO message_counters (org_id, shard, messages, queued, queued_bytes)
    VALUES (NEW.org_id, 0, 1, NEW.state = 'queued',
            CASE WHEN NEW.state = 'queued' THEN NEW.payload_bytes ELSE 0 END)
    ON CONFLICT (org_id, shard) DO UPDATE SET messages = messages + 1,
           queued = queued + excluded.queued,
           queued_bytes = queued_bytes + excluded.queued_bytes;
END;
CREATE TRIGGER count_updated_messages AFTER UPDATE OF state, payload_bytes ON messages
    WHEN OLD.state = 'queued' OR NEW.state = 'queued' BEGIN
    UPDATE message_counters SET
           queued = queued + (NEW.state = 'queued') - (OLD.state = 'queued'),
           queued_bytes = queued_bytes
               + CASE WHEN NEW.state = 'queued' THEN NEW.payload_bytes ELSE 0 END
               - CASE WHEN OLD.state = 'queued' THEN OLD.payload_bytes ELSE 0 END
     WHERE org_id = NEW.org_id AND shard = 0;
END;
CREATE TRIGGER count_deleted_messages AFTER DELETE ON messages BEGIN
    UPDATE message_counters SET messages = messages - 1,
           queued = queued - (OLD.state = 'queued'),
           queued_bytes = queued_bytes
               - CASE WHEN OLD.state = 'queued' THEN OLD.payload_bytes ELSE 0 END
     WHERE org_id = OLD.org_id AND shard = 0;
END;
