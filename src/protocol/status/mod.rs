//! The status dialect: what rhc and yggdrasil speak.
//!
//! `control` and `data` read what clients say; `outgoing` writes what goes to them; `client` is the
//! other end, for the simulator.

pub mod client_side;
pub mod decode_control;
pub mod decode_data;
pub mod encode;

pub use decode_control::decode_control;
pub use decode_data::decode_data;
pub use encode::{encode_command, encode_message};
