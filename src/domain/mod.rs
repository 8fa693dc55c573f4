//! What the system talks about: ids, connections, tenants, identities, time. Types and rules only.
//!
//! Nothing here does I/O, knows a wire format or a table. What a message looks like on the wire
//! is in `protocol`; what a row looks like is in `store`.

pub mod clock;
pub mod connection;
pub mod identity;
pub mod ids;
pub mod message;
pub mod tenant;

pub use clock::{Clock, SystemClock, Timestamp};
pub use connection::{ClientInfo, ClientKind, Connection, Dialect};
pub use identity::{Identity, IdentityError};
pub use ids::{ClientId, InvalidId, MessageId, OrgId};
pub use message::OutgoingMessage;
pub use tenant::Tenant;
