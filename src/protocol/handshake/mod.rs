//! The handshake dialect: retained handshakes on `in`, everything back on `out`.
//!
//! `incoming` reads what clients say; `outgoing` writes what goes to them; `client` is the other
//! end, for the simulator.

pub mod client;
pub mod incoming;
pub mod outgoing;

pub use incoming::{is_answer, read};
pub use outgoing::{encode_command, encode_message, encode_refusal};
