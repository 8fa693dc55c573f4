//! The status dialect: what rhc and yggdrasil speak.
//!
//! `control` and `data` read what clients say; `outgoing` writes what goes to them; `client` is the
//! other end, for the simulator.

pub mod client;
pub mod control;
pub mod data;
pub mod outgoing;

pub use control::read_control;
pub use data::read_data;
pub use outgoing::{encode_command, encode_message};
