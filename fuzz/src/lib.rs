//! Checks that the fuzz targets share.
//!
//! The crate includes `domain` and `protocol` by path. Both modules have few dependencies, so a
//! fuzz target compiles in seconds, without the broker, the databases and Kafka.

#[path = "../../src/domain/mod.rs"]
pub mod domain;
#[path = "../../src/protocol/mod.rs"]
pub mod protocol;

pub mod corpus;
pub mod decode;
pub mod round_trip;
pub mod topics;
