//! From MQTT to the queue, from the queue to the recorder, or straight from one to the other.
//!
//! A source hands over what it was given and acknowledges it only when the next stage says that it
//! is durable.

pub mod embedded_broker;
pub mod external_broker;
pub mod kafka_reader;

mod in_flight;
mod next_stage;

pub use next_stage::NextStage;
