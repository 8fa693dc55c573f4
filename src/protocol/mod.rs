//! Topics and messages: bytes ↔ types, no I/O.
//!
//! Everything here is total: no input makes it panic, and what it keeps is bounded by the size of
//! the input. A dialect has a folder of its own; the topics of all of them are in `topics`.

pub mod received;
pub mod status;
pub mod topics;

pub use received::{Received, Rejected};
pub use topics::{Channel, ClientTopic, Direction, Topics};
