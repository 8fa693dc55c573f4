-- Adds the records of tracked messages (decision 035). The tables also have the columns for queued and bulk
-- messages and for idempotency keys.
--
-- The primary keys are UUIDs of version 7 as text: their order is the order in which they were created. An id is
-- text, because clients send ids back as text.

SET LOCAL lock_timeout = '10s';

-- The content that all messages of a bulk share.
CREATE TABLE bulks (
    id             text COLLATE "C" NOT NULL PRIMARY KEY,
    org_id         text COLLATE "C" NOT NULL,
    account        text             NOT NULL,
    caller         text             NOT NULL,
    directive      text             NOT NULL,
    metadata       text,
    payload        text,
    -- JSON object with the client ids or the filter, and the options of the request.
    request        text             NOT NULL,
    state          text             NOT NULL,
    -- Null until all messages of the bulk are inserted.
    total          bigint,
    -- Client id of the latest inserted message, from which an interrupted preparation continues.
    prepared_up_to text COLLATE "C",
    rate           bigint           NOT NULL,
    queue_seconds  bigint,
    created_at     timestamptz      NOT NULL,
    started_at     timestamptz,
    finished_at    timestamptz,
    lease_until    timestamptz
);
CREATE INDEX bulks_org_id ON bulks (org_id, id);

CREATE TABLE messages (
    id               text COLLATE "C" NOT NULL PRIMARY KEY,
    org_id           text COLLATE "C" NOT NULL,
    account          text             NOT NULL,
    client_id        text COLLATE "C" NOT NULL,
    client_org_id    text COLLATE "C" NOT NULL,
    caller           text             NOT NULL,
    directive        text             NOT NULL,
    state            text             NOT NULL,
    reason           text,
    bulk_id          text COLLATE "C",
    attempts         bigint           NOT NULL DEFAULT 0,
    may_be_duplicate bigint           NOT NULL DEFAULT 0,
    created_at       timestamptz      NOT NULL,
    sent_at          timestamptz,
    acknowledged_at  timestamptz,
    answered_at      timestamptz,
    ended_at         timestamptz,
    final_at         timestamptz,
    expires_at       timestamptz,
    lease_until      timestamptz,
    answer           text,
    answer_truncated bigint           NOT NULL DEFAULT 0,
    answer_count     bigint           NOT NULL DEFAULT 0,
    queue_number     bigint,
    metadata         text,
    payload          text,
    payload_bytes    bigint           NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

-- To list the messages of an organization, newest first, and to delete the oldest.
CREATE INDEX messages_org_id ON messages (org_id, id);
CREATE INDEX messages_client_id ON messages (client_id, id);
CREATE INDEX messages_bulk_id ON messages (bulk_id, client_id) WHERE bulk_id IS NOT NULL;
-- To find the messages whose record has expired.
CREATE INDEX messages_final_at ON messages (final_at) WHERE final_at IS NOT NULL;
-- To find messages whose process has ended between the publish and the acknowledgement.
CREATE INDEX messages_lease_until ON messages (lease_until) WHERE state = 'sending';
-- The messages of a client that wait, in the order of acceptance.
CREATE INDEX messages_queue ON messages (client_id, queue_number) WHERE state IN ('queued', 'sending');
CREATE INDEX messages_expires_at ON messages (expires_at) WHERE state = 'queued';

-- One row for each client with queued messages. The row is the lock for the order of the client's messages.
CREATE TABLE message_queues (
    client_id    text COLLATE "C" NOT NULL PRIMARY KEY,
    -- Number of the latest accepted message.
    last_number  bigint           NOT NULL DEFAULT 0,
    -- Time at which the next message can be claimed. Null while the queue waits for a presence change.
    release_at   timestamptz,
    lease_until  timestamptz,
    holder       text,
    -- Number of unsuccessful attempts since the latest presence change.
    retries      bigint           NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX message_queues_release_at ON message_queues (release_at) WHERE release_at IS NOT NULL;

CREATE TABLE idempotency_keys (
    org_id            text COLLATE "C" NOT NULL,
    caller            text COLLATE "C" NOT NULL,
    key               text COLLATE "C" NOT NULL,
    -- SHA-256 of method, path and body.
    request_hash      text             NOT NULL,
    message_id        text COLLATE "C",
    bulk_id           text COLLATE "C",
    in_progress_until timestamptz      NOT NULL,
    expires_at        timestamptz      NOT NULL,
    -- Null until the response is known.
    status            bigint,
    body              text,
    PRIMARY KEY (org_id, caller, key)
);
CREATE INDEX idempotency_keys_expires_at ON idempotency_keys (expires_at);

-- Numbers of messages of each organization. The sum of all shards is the number. A transaction uses a shard that
-- no other open transaction uses (see acquire_count_shard), so it never waits for the counters of another one.
CREATE TABLE message_counters (
    org_id       text COLLATE "C" NOT NULL,
    shard        integer          NOT NULL,
    messages     bigint           NOT NULL,
    queued       bigint           NOT NULL,
    queued_bytes bigint           NOT NULL,
    PRIMARY KEY (org_id, shard)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE FUNCTION count_messages() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO message_counters AS c (org_id, shard, messages, queued, queued_bytes)
        SELECT org_id, acquire_count_shard(), count(*), count(*) FILTER (WHERE state = 'queued'),
               COALESCE(sum(payload_bytes) FILTER (WHERE state = 'queued'), 0)
          FROM new_rows GROUP BY org_id
        ON CONFLICT (org_id, shard) DO UPDATE SET messages = c.messages + excluded.messages,
               queued = c.queued + excluded.queued,
               queued_bytes = c.queued_bytes + excluded.queued_bytes;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO message_counters AS c (org_id, shard, messages, queued, queued_bytes)
        SELECT org_id, acquire_count_shard(), -count(*), -count(*) FILTER (WHERE state = 'queued'),
               -COALESCE(sum(payload_bytes) FILTER (WHERE state = 'queued'), 0)
          FROM old_rows GROUP BY org_id
        ON CONFLICT (org_id, shard) DO UPDATE SET messages = c.messages + excluded.messages,
               queued = c.queued + excluded.queued,
               queued_bytes = c.queued_bytes + excluded.queued_bytes;
    ELSE
        INSERT INTO message_counters AS c (org_id, shard, messages, queued, queued_bytes)
        SELECT org_id, acquire_count_shard(), 0, sum(queued), sum(queued_bytes)
          FROM (SELECT org_id, 1 AS queued, payload_bytes AS queued_bytes
                  FROM new_rows WHERE state = 'queued'
                 UNION ALL
                SELECT org_id, -1, -payload_bytes FROM old_rows WHERE state = 'queued') AS changes
         GROUP BY org_id HAVING sum(queued) <> 0 OR sum(queued_bytes) <> 0
        ON CONFLICT (org_id, shard) DO UPDATE SET queued = c.queued + excluded.queued,
               queued_bytes = c.queued_bytes + excluded.queued_bytes;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER count_inserted_messages AFTER INSERT ON messages
    REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT EXECUTE FUNCTION count_messages();
CREATE TRIGGER count_updated_messages AFTER UPDATE ON messages
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION count_messages();
CREATE TRIGGER count_deleted_messages AFTER DELETE ON messages
    REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION count_messages();

COMMENT ON COLUMN messages.org_id IS 'Organization of the sender. Only this organization sees the message.';
COMMENT ON COLUMN messages.client_org_id IS
    'Organization of the client when the message was accepted. Differs from org_id for a Satellite server.';
COMMENT ON COLUMN messages.ended_at IS 'Time at which the message failed, expired or was cancelled.';
COMMENT ON COLUMN messages.final_at IS
    'Time of the latest final state, from which the retention counts. Null while the message is queued or sending.';
COMMENT ON COLUMN messages.lease_until IS
    'Until this time, the process that sends the message reports its result.';
COMMENT ON COLUMN messages.answer IS
    'Content of the first answer, as JSON. Only the start of the text if answer_truncated is 1.';
COMMENT ON COLUMN messages.payload IS 'Null for messages of a bulk, and as soon as the message is final.';
