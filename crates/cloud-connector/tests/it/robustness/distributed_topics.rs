//! Kafka topics that are recreated, and Kafka clients that fail.
