//! Logs, metrics, health and supervised tasks.
//!
//! [`metrics`] collects and renders the metrics. Each component defines its metrics in its own
//! module `metrics`, where each function reports one event: the function updates a metric, and some
//! functions also write a log line. Each metric label has a fixed set of values.

mod breaker;
mod byte_budget;
mod client_budget;
pub mod health;
mod log_limiter;
mod log_settings;
mod log_text;
mod log_throttle;
pub mod logs;
pub mod metrics;
mod output_queue;
pub mod rate_limit;
pub mod request_id;
pub mod settings;
mod supervisor;
mod task_group;

pub use breaker::{Admission, Breaker};
pub use byte_budget::{ByteBudget, ByteReservation};
pub use client_budget::{ClientBudgetSettings, ClientBudgets};
pub use health::Health;
pub use log_limiter::LogLimiter;
pub use log_settings::{LogFormat, LogSettings};
pub use log_text::log_text;
pub use log_throttle::LogThrottle;
pub use supervisor::{FailureCause, Supervisor, TaskFailure, TaskName};
pub use task_group::{TaskGroup, spawn_detached_item};
