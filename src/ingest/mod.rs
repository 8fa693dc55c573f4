//! Receives client messages from the embedded broker, an external broker or Kafka, and forwards
//! them to Kafka or to the recorder.
//!
//! A message is acknowledged only after the next stage has stored it durably.

pub mod embedded_broker;
pub mod external_broker;
pub mod kafka_reader;

mod in_flight;
mod next_stage;

pub use next_stage::NextStage;
