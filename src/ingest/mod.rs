//! From MQTT to the queue, from the queue to the recorder, or straight from one to the other.
//!
//! A source hands over what it was given and acknowledges it only when the next stage says that it
//! is durable.

pub mod embedded;
pub mod outside;
pub mod queue;

mod destination;
mod load;

pub use destination::Destination;
