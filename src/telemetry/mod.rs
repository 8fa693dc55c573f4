//! Logs, metrics, health.
//!
//! One function a happening (`metrics::*`), called where it is handled: counter and log line leave
//! together, or the counter alone where a line each would flood. Labels take few values.

pub mod health;
pub mod logs;
pub mod metrics;
pub mod request_id;

pub use health::Health;
