//! The status dialect, which rhc and yggdrasil use.
//!
//! `decode_control`, `decode_data` and `encode` contain the service's side of the dialect.
//! `client_side` contains the client's side, which the simulator uses.

pub mod client_side;
pub mod decode_control;
pub mod decode_data;
mod dialect;
pub mod encode;

pub use decode_control::decode_control;
pub use decode_data::decode_data;
pub use dialect::{
    CONTROL_FROM_CLIENT, CONTROL_TO_CLIENT, DATA_FROM_CLIENT, DATA_TO_CLIENT, NAME, StatusDialect,
};
pub use encode::{encode_command, encode_message};
