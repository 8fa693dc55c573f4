//! Types of events, and the fields of each type. The documentation of events is built from these
//! constants.

/// A connection became visible to the organization.
pub const CONNECTION_ONLINE: &str = "connection.online";
/// The information about a connected client changed.
pub const CONNECTION_UPDATED: &str = "connection.updated";
/// A connection is no longer visible to the organization.
pub const CONNECTION_OFFLINE: &str = "connection.offline";
/// A tracked message is stored and waits for its client.
pub const MESSAGE_QUEUED: &str = "message.queued";
/// A tracked message is passed to the connection to the broker.
pub const MESSAGE_SENT: &str = "message.sent";
/// The broker acknowledged a tracked message.
pub const MESSAGE_ACKNOWLEDGED: &str = "message.acknowledged";
/// The client answered a tracked message.
pub const MESSAGE_ANSWERED: &str = "message.answered";
/// The client could not process a tracked message.
pub const MESSAGE_REJECTED: &str = "message.rejected";
/// A tracked message was not delivered.
pub const MESSAGE_FAILED: &str = "message.failed";
/// The time to live of a tracked message passed before it was sent.
pub const MESSAGE_EXPIRED: &str = "message.expired";
/// The caller cancelled a tracked message.
pub const MESSAGE_CANCELLED: &str = "message.cancelled";

/// `ce_type` of an event in Kafka is this prefix and the type of the event.
pub const CLOUD_EVENT_TYPE_PREFIX: &str = "com.redhat.cloud-connector.";
/// `ce_source` of all events in Kafka.
pub const CLOUD_EVENT_SOURCE: &str = "urn:redhat:cloud-connector";

/// The kind of the values of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// A JSON object.
    Object,
    /// A JSON object, or null.
    OptionalObject,
    /// A text.
    Text,
    /// A text, or null.
    OptionalText,
    /// A time in RFC 3339.
    Time,
    /// A list of texts.
    TextList,
    /// A number of seconds.
    Seconds,
    /// A name from [`OnlineCause`](crate::OnlineCause).
    OnlineCause,
    /// A name from [`OfflineReason`](crate::OfflineReason).
    OfflineReason,
    /// A name from [`MessageState`](crate::MessageState).
    MessageState,
}

/// A field of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventField {
    /// Name of the field.
    pub name: &'static str,
    /// Kind of the values.
    pub kind: FieldKind,
    /// What the field contains.
    pub description: &'static str,
}

/// A type of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventType {
    /// Name of the type.
    pub name: &'static str,
    /// When an event of this type occurs.
    pub description: &'static str,
    /// The fields that an event of this type has in addition to [`COMMON_FIELDS`].
    pub fields: &'static [EventField],
}

const fn field(name: &'static str, kind: FieldKind, description: &'static str) -> EventField {
    EventField {
        name,
        kind,
        description,
    }
}

/// The fields that all events have.
pub const COMMON_FIELDS: &[EventField] = &[
    field(
        "id",
        FieldKind::Text,
        "Position of the event: a decimal number that increases with each event.",
    ),
    field("type", FieldKind::Text, "Type of the event."),
    field("time", FieldKind::Time, "Time of the event."),
    field(
        "org_id",
        FieldKind::Text,
        "Organization that the client belongs to.",
    ),
    field(
        "account",
        FieldKind::Text,
        "Account number of the organization, or an empty text.",
    ),
    field("client_id", FieldKind::Text, "Client id."),
];

const DISPATCHERS: EventField = field(
    "dispatchers",
    FieldKind::OptionalObject,
    "Applications on the client that accept messages, by name.",
);
const TAGS: EventField = field("tags", FieldKind::OptionalObject, "Tags of the client.");
const CANONICAL_FACTS: EventField = field(
    "canonical_facts",
    FieldKind::Object,
    "Facts that identify the machine.",
);
const CLIENT_VERSION: EventField = field(
    "client_version",
    FieldKind::Text,
    "Version of the client program, or an empty text.",
);

/// The fields of all events of tracked messages.
const MESSAGE_FIELDS: &[EventField] = &[
    field("message_id", FieldKind::Text, "Id of the message."),
    field("directive", FieldKind::Text, "Directive of the message."),
    field(
        "state",
        FieldKind::MessageState,
        "State of the message after the event.",
    ),
    field(
        "reason",
        FieldKind::OptionalText,
        "Why the message failed. Null for all other states.",
    ),
    field(
        "bulk_id",
        FieldKind::OptionalText,
        "Id of the bulk that the message belongs to, or null.",
    ),
];

const fn message_event(name: &'static str, description: &'static str) -> EventType {
    EventType {
        name,
        description,
        fields: MESSAGE_FIELDS,
    }
}

/// All types of events.
pub const EVENT_TYPES: &[EventType] = &[
    EventType {
        name: CONNECTION_ONLINE,
        description: "A connection became visible to the organization.",
        fields: &[
            DISPATCHERS,
            TAGS,
            CANONICAL_FACTS,
            CLIENT_VERSION,
            field(
                "cause",
                FieldKind::OnlineCause,
                "Why the connection became visible.",
            ),
        ],
    },
    EventType {
        name: CONNECTION_UPDATED,
        description: "The facts, dispatchers, tags or the version of a connected client changed.",
        fields: &[
            DISPATCHERS,
            TAGS,
            CANONICAL_FACTS,
            CLIENT_VERSION,
            field(
                "changed",
                FieldKind::TextList,
                "Names of the fields of this event that changed.",
            ),
        ],
    },
    EventType {
        name: CONNECTION_OFFLINE,
        description: "A connection is no longer visible to the organization.",
        fields: &[
            field(
                "reason",
                FieldKind::OfflineReason,
                "Why the connection is no longer visible.",
            ),
            field(
                "connected_for",
                FieldKind::Seconds,
                "Number of seconds for which the client was connected.",
            ),
            DISPATCHERS,
        ],
    },
    message_event(
        MESSAGE_QUEUED,
        "A message is stored and waits for its client.",
    ),
    message_event(
        MESSAGE_SENT,
        "A message is passed to the connection to the broker. The broker has not acknowledged it.",
    ),
    message_event(MESSAGE_ACKNOWLEDGED, "The broker acknowledged a message."),
    message_event(MESSAGE_ANSWERED, "The client answered a message."),
    message_event(
        MESSAGE_REJECTED,
        "The client answered that it could not process a message.",
    ),
    message_event(
        MESSAGE_FAILED,
        "A message was not delivered, and is not sent again.",
    ),
    message_event(
        MESSAGE_EXPIRED,
        "The time to live of a message passed before it was sent.",
    ),
    message_event(MESSAGE_CANCELLED, "The caller cancelled a message."),
];
