//! Types of values that the settings of several components contain, and shared checks.
//!
//! Each component has its own settings struct and validates it. `config` composes these structs.

pub mod deserialize;
mod duration;
mod invalid_value;
mod pem;

pub use duration::HumanDuration;
pub use invalid_value::{InvalidValue, require_nonzero_connection_limit, require_nonzero_duration};
pub use pem::PemSource;
pub use secrecy::{ExposeSecret, SecretString};
