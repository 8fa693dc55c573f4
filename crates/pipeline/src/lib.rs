//! The path of a message from a client to the database.
//!
//! [`ingest`] receives messages from a broker or from Kafka. [`record`] writes their effect to the
//! database.

pub mod ingest;
pub mod record;
