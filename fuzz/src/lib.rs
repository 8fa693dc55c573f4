//! Functions that check invariants. The fuzz targets share these functions.
//!
//! The crate depends only on `domain` and `protocol`, so a fuzz target compiles in seconds.

pub mod corpus;
pub mod decode;
pub mod round_trip;
pub mod topics;
