//! TLS for the listeners of this process. Reads and checks certificate files, and reloads the files
//! when they change. TLS for outgoing connections belongs to the client modules.

mod error;
pub mod metrics;
mod pem;
mod reload;

pub use error::TlsError;
pub use pem::{
    check_certificate_file, check_valid_now, read_certificates, read_file, read_private_key,
    unusable_file,
};
pub use reload::{ServerTls, reload_on_change};
