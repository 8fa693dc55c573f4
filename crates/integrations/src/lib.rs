//! Reports hosts to the inventory service (through Kafka or a file), catalog proxies to the sources
//! service (through HTTP), and events to a Kafka topic.
//!
//! This module decides what a report contains and sends the report. `record` and `jobs` decide when
//! to report and what to do after a failure.

pub mod events;
pub mod inventory;
pub mod metrics;
pub mod sources;
