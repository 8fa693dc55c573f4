-- Adds the identity of the Kafka topic to the queue position of the latest presence message. Both
-- databases have the same column names. The PostgreSQL migration 0008_queue_topic.sql describes the
-- column.

ALTER TABLE connections ADD COLUMN queue_topic INTEGER;
ALTER TABLE disconnected_clients ADD COLUMN queue_topic INTEGER;
