//! The types that the other modules share: ids, connections, tenants, identities and time.
//!
//! This module does no I/O. Wire formats belong in `protocol`, and database rows belong in `store`.

pub mod broker_rejection;
pub mod clock;
pub mod connection;
pub mod event;
pub mod identity;
pub mod ids;
pub mod ingest_stamp;
pub mod lookup_status;
pub mod message;
pub mod message_state;
pub mod presence;
pub mod reject_reason;
pub mod tenant;

pub use broker_rejection::BrokerRejection;
pub use clock::{Clock, SystemClock, Timestamp};
pub use connection::{ClientInfo, ClientKind, Connection, DialectName};
pub use identity::{Identity, IdentityError};
pub use ids::{ClientId, InvalidId, MessageId, OrgId};
pub use ingest_stamp::{IngestStamp, InvalidIngestStamp};
pub use lookup_status::LookupStatus;
pub use message::OutgoingMessage;
pub use message_state::{MessageFailure, MessageState};
pub use presence::{OfflineReason, OnlineCause};
pub use reject_reason::RejectReason;
pub use tenant::Tenant;
