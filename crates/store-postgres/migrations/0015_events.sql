-- Adds the events of organizations.
--
-- A transaction that changes a state inserts its events into event_outbox. Transactions can commit in another
-- order than they draw ids, so a reader of event_outbox could skip an event. The sequencer moves committed
-- events to the table events, and gives them positions without gaps. The events of one client keep their
-- order: a transaction draws their ids while it holds the lock of the client's row.

SET LOCAL lock_timeout = '10s';

CREATE TABLE event_outbox (
    id                   bigint GENERATED ALWAYS AS IDENTITY (CACHE 1) PRIMARY KEY,
    at                   timestamptz      NOT NULL,
    type                 text             NOT NULL,
    org_id               text COLLATE "C" NOT NULL,
    account              text             NOT NULL,
    client_id            text COLLATE "C" NOT NULL,
    data                 text             NOT NULL,
    previous_dispatchers text
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE events (
    position             bigint           NOT NULL PRIMARY KEY,
    at                   timestamptz      NOT NULL,
    type                 text             NOT NULL,
    org_id               text COLLATE "C" NOT NULL,
    account              text             NOT NULL,
    client_id            text COLLATE "C" NOT NULL,
    data                 text             NOT NULL,
    previous_dispatchers text
);
CREATE INDEX events_org_id_position ON events (org_id, position);

-- The latest position that each user of the events has processed.
CREATE TABLE event_positions (
    name       text        NOT NULL PRIMARY KEY,
    position   bigint      NOT NULL,
    holder     text,
    held_until timestamptz
);
INSERT INTO event_positions (name, position) VALUES ('sequencer', 0), ('forwarder', 0);

COMMENT ON COLUMN events.data IS 'JSON object with the fields that only this type of event has.';
COMMENT ON COLUMN events.previous_dispatchers IS
    'JSON object with the dispatchers before the event, if they differ from those in data.';
