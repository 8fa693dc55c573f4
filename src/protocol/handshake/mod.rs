//! The handshake dialect: retained handshakes on `in`, everything back on `out`.
//!
//! `incoming` reads what clients say; `outgoing` writes what goes to them; `client` is the other
//! end, for the simulator.

pub mod client_side;
pub mod decode;
pub mod encode;

pub use decode::{is_response, read};
pub use encode::{encode_command, encode_message, encode_refusal};
