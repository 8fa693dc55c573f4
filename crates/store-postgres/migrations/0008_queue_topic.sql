-- Adds the identity of the Kafka topic to the queue position of the latest presence message. A process
-- of an older version ignores the new columns and continues to run.

SET LOCAL statement_timeout = 0;
-- While this transaction waits for a table lock, later transactions wait for this transaction. To
-- limit this time, the migration fails after 10 seconds and changes nothing. In that case, run
-- `cloud-connector migrate` again.
SET LOCAL lock_timeout = '10s';

-- Migration 0006 explains why both tables are locked first.
LOCK TABLE connections, disconnected_clients IN EXCLUSIVE MODE;

ALTER TABLE connections ADD COLUMN queue_topic bigint;
ALTER TABLE disconnected_clients ADD COLUMN queue_topic bigint;

COMMENT ON COLUMN connections.queue_topic IS
    'First 64 bits of the id of the Kafka topic to which queue_partition and queue_offset belong.';
COMMENT ON COLUMN disconnected_clients.queue_topic IS
    'First 64 bits of the id of the Kafka topic to which queue_partition and queue_offset belong.';
