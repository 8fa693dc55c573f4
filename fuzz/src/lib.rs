//! Functions that check invariants. The fuzz targets share these functions.
//!
//! The crate includes the modules `domain` and `protocol` of the main crate by path. These modules
//! have few dependencies. So a fuzz target compiles in seconds, because it does not include the
//! broker, the databases and Kafka.

#[path = "../../src/domain/mod.rs"]
pub mod domain;
#[path = "../../src/protocol/mod.rs"]
pub mod protocol;

pub mod corpus;
pub mod decode;
pub mod round_trip;
pub mod topics;
