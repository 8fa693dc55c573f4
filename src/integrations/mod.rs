//! Reports to external services: hosts to inventory (Kafka or a file), catalog proxies to sources
//! (HTTP).
//!
//! This module decides what a report contains and sends it. `record` and `jobs` decide when to
//! report and what to do after a failure.

pub mod inventory;
pub mod sources;
