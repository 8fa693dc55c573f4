//! Reports hosts to the inventory service (through Kafka or a file), and catalog proxies to the
//! sources service (through HTTP).
//!
//! This module decides what a report contains and sends the report. `record` and `jobs` decide when
//! to report and what to do after a failure.

pub mod inventory;
pub mod metrics;
pub mod sources;
