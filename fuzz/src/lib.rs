//! What the fuzzers share.
//!
//! The two rooms that read what strangers send are taken in by their path: they need no more than
//! serde, so a fuzzer is built in seconds and without the broker, the databases or Kafka.

#[path = "../../src/domain/mod.rs"]
pub mod domain;
#[path = "../../src/protocol/mod.rs"]
pub mod protocol;

pub mod corpus;
pub mod reading;
pub mod round_trip;
pub mod topics;
