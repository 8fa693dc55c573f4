//! Logs, metrics and health.
//!
//! Each function in [`metrics`] reports one event: it updates the metric and, where the number of
//! lines is bounded, writes the log line. Metric labels have a fixed set of values.

pub mod health;
mod log_throttle;
pub mod logs;
pub mod metrics;
pub mod request_id;

pub use health::Health;
pub use log_throttle::LogThrottle;
