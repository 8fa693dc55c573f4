//! From MQTT to the recorder.
//!
//! A source hands over what its broker gave it and acknowledges to the broker only when the
//! recorder says that it is durable.

pub mod embedded;
