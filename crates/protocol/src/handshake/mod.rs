//! The handshake dialect: clients register with retained handshake messages.
//!
//! `decode` and `encode` contain the service's side of the dialect. `client_side` contains the
//! client's side, which the simulator uses.

pub mod client_side;
pub mod decode;
mod dialect;
pub mod encode;
mod topic_levels;

pub use decode::{decode, is_response};
pub use dialect::{FROM_CLIENT, HandshakeDialect, NAME, STATUS_FROM_CLIENT, TO_CLIENT};
pub use encode::{encode_command, encode_handshake_error, encode_message};
pub use topic_levels::HandshakeTopicLevels;
