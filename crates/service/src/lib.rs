//! Logs, metrics and health.
//!
//! [`metrics`] collects and renders the metrics. Each component defines its metrics in its own
//! module `metrics`, where each function reports one event: the function updates a metric, and some
//! functions also write a log line. Each metric label has a fixed set of values.

pub mod health;
mod log_settings;
mod log_throttle;
pub mod logs;
pub mod metrics;
pub mod rate_limit;
pub mod request_id;
pub mod settings;
pub mod shutdown;

pub use health::Health;
pub use log_settings::{LogFormat, LogSettings};
pub use log_throttle::LogThrottle;
