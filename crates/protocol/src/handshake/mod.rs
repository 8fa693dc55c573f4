//! The handshake dialect: clients register with retained handshake messages.
//!
//! `decode` and `encode` contain the service's side of the dialect. `client_side` contains the
//! client's side, which the simulator uses.

pub mod client_side;
pub mod decode;
pub mod encode;

pub use decode::{decode, is_response};
pub use encode::{encode_command, encode_handshake_error, encode_message};
