-- Adds the times and the reason of presence changes to the row of a client, and the history of the changes.
--
-- No index contains the new columns of connections, so an update of a known client stays a HOT update.
-- Existing rows have no values. Readers then use the time of the latest online message.

SET LOCAL lock_timeout = '10s';
-- Disables the statement timeout of the program, because the indexes of a large table take longer.
SET LOCAL statement_timeout = 0;

ALTER TABLE connections
    ADD COLUMN connected_since         timestamptz,
    ADD COLUMN last_seen               timestamptz,
    ADD COLUMN reconnects              bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects       bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects_since timestamptz,
    ADD COLUMN transition_count        bigint NOT NULL DEFAULT 0,
    ADD COLUMN content_hashes          text;

ALTER TABLE disconnected_clients
    ADD COLUMN connected_since         timestamptz,
    ADD COLUMN last_seen               timestamptz,
    ADD COLUMN reconnects              bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects       bigint NOT NULL DEFAULT 0,
    ADD COLUMN hourly_reconnects_since timestamptz,
    ADD COLUMN transition_count        bigint NOT NULL DEFAULT 0,
    ADD COLUMN content_hashes          text,
    ADD COLUMN reason                  text;

CREATE TABLE presence_history (
    client_id text COLLATE "C" NOT NULL,
    number    bigint           NOT NULL,
    at        timestamptz      NOT NULL,
    -- Empty for a tenantless client.
    org_id    text COLLATE "C" NOT NULL,
    status    text             NOT NULL,
    reason    text             NOT NULL,
    PRIMARY KEY (client_id, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1);

-- Rows are inserted in the order of their times, so a small BRIN index finds the expired rows.
CREATE INDEX presence_history_at ON presence_history USING brin (at) WITH (pages_per_range = 32);

-- To find a client by a fact, in any organization. An index entry has at most 255 characters, because
-- PostgreSQL rejects rows with larger entries.
CREATE INDEX connections_fqdn ON connections (left(canonical_facts ->> 'fqdn', 255));
CREATE INDEX connections_insights_id ON connections (left(canonical_facts ->> 'insights_id', 255));
CREATE INDEX connections_subscription_manager_id
    ON connections (left(canonical_facts ->> 'subscription_manager_id', 255));
CREATE INDEX disconnected_clients_fqdn ON disconnected_clients (left(canonical_facts ->> 'fqdn', 255));
CREATE INDEX disconnected_clients_insights_id
    ON disconnected_clients (left(canonical_facts ->> 'insights_id', 255));
CREATE INDEX disconnected_clients_subscription_manager_id
    ON disconnected_clients (left(canonical_facts ->> 'subscription_manager_id', 255));

COMMENT ON COLUMN connections.connected_since IS
    'Time at which the connection became visible to the organization. Null in rows of earlier versions.';
COMMENT ON COLUMN connections.last_seen IS
    'Time of the latest message of the client. Written with other changes of the row, otherwise at most once per presence.last_seen_interval.';
COMMENT ON COLUMN connections.reconnects IS
    'Number of times the client has connected again since it was first seen in its organization.';
COMMENT ON COLUMN connections.hourly_reconnects IS
    'Number of reconnects since hourly_reconnects_since, which is at most one hour before the latest reconnect.';
COMMENT ON COLUMN connections.transition_count IS
    'Number of all presence transitions of the client, including those without a row in presence_history.';
COMMENT ON COLUMN connections.content_hashes IS
    'Hashes of the facts, dispatchers, tags and version that the client sent, to detect changes.';
COMMENT ON COLUMN disconnected_clients.reason IS
    'Why the client is disconnected. Null in rows of earlier versions.';
COMMENT ON COLUMN presence_history.number IS
    'Number of the transition. A gap is the number of transitions that were merged in one batch.';
