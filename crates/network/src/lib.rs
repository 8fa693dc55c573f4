//! HTTP requests to other services, TLS for the listeners of this process, and a private certificate
//! authority.

pub mod certificate_authority;
pub mod http_client;
pub mod tls_server;
