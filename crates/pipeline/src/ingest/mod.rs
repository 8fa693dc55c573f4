//! Receives client messages from the embedded broker, an external broker or Kafka, and forwards
//! them to Kafka or to the recorder.
//!
//! A message is acknowledged only after Kafka or the recorder has stored the message durably.

pub mod embedded_broker;
pub mod epoch;
pub mod external_broker;
pub mod kafka_reader;
pub mod metrics;
pub mod queue_consumer;
pub mod recording_progress;
pub mod session_lease;

mod forward;
mod in_flight;

pub use forward::{ForwardDestination, forward_replayed_message};
