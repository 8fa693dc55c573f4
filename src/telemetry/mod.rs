//! Logs, metrics and health.
//!
//! Each function in [`metrics`] reports one event: the function updates a metric, and some
//! functions also write a log line. Each metric label has a fixed set of values.

pub mod health;
mod log_throttle;
pub mod logs;
pub mod metrics;
pub mod request_id;

pub use health::Health;
pub use log_throttle::LogThrottle;
