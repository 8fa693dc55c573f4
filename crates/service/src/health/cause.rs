//! The causes that `/readiness` reports for a component that is not healthy.

/// Why a component is not healthy.
///
/// `/readiness` needs no authentication, so its response contains only these causes. An error can
/// contain user names, addresses, paths and errors of the operating system: it is only logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthCause {
    /// The process or the component is stopping.
    ShuttingDown,
    /// A file of the database was deleted or replaced.
    FileLost,
    /// The database rejects the rows of most clients.
    RowsRejected,
    /// The disk is full.
    DiskFull,
    /// Another process has locked the database.
    DatabaseLocked,
    /// The service rejects the credentials of this process.
    AuthenticationFailed,
    /// The service accepts the credentials, but denies the access.
    PermissionDenied,
    /// The name of the host has no address.
    NameNotResolved,
    /// No process listens at the address.
    ConnectionRefused,
    /// The TLS handshake failed.
    TlsFailed,
    /// The server does not have the database.
    DatabaseMissing,
    /// The database has no schema.
    SchemaMissing,
    /// The schema of the database is older than this program.
    SchemaOutdated,
    /// A Kafka partition has no leader.
    NoLeader,
    /// The Kafka topic does not exist.
    TopicMissing,
    /// The consumer is not a member of its group.
    GroupNotJoined,
    /// Messages are unread, and the consumer does not read them.
    NoProgress,
    /// The service did not respond in time.
    Timeout,
    /// There is no connection, because it was never opened or was lost.
    NotConnected,
    /// A task of the process has ended.
    TaskEnded,
    /// The database did not accept a write, for another reason.
    WriteFailed,
    /// Any other cause.
    Unavailable,
}

/// Parts of error texts, in lower case, and the causes that they show. The first match decides: the
/// text of an MQTT broker that rejects a password also contains "connection refused", and the text of
/// a failed write contains the error of the database.
///
/// The errors of the drivers have no common type, and most drivers return only a text.
const CAUSES_OF_TEXTS: &[(HealthCause, &[&str])] = &[
    (HealthCause::ShuttingDown, &["shutting down"]),
    (HealthCause::FileLost, &["while the process used it"]),
    (HealthCause::RowsRejected, &["rejects rows of many clients"]),
    (
        HealthCause::DiskFull,
        &["disk is full", "no space left", "could not extend file"],
    ),
    (HealthCause::DatabaseLocked, &["database is locked"]),
    (
        HealthCause::AuthenticationFailed,
        &[
            "authentication fail",
            "badusernamepassword",
            "notauthorized",
            "no pg_hba.conf entry",
            "role \"",
            "authentication required",
            "saslauthenticationfailed",
        ],
    ),
    (
        HealthCause::PermissionDenied,
        &[
            "permission denied",
            "authorizationfailed",
            "authorization failed",
            "rejected a subscription",
            "rejected the subscription",
        ],
    ),
    (
        HealthCause::NameNotResolved,
        &[
            "failed to lookup address",
            "name or service not known",
            "name resolution",
            "host resolution failure",
            "failed to resolve",
        ],
    ),
    (HealthCause::ConnectionRefused, &["connection refused"]),
    (
        HealthCause::TlsFailed,
        &["certificate", "tls", "ssl handshake", "invalidcontenttype"],
    ),
    (
        HealthCause::SchemaMissing,
        &["has no schema", "no such table", "relation \""],
    ),
    (
        HealthCause::SchemaOutdated,
        &[
            "schema is older",
            "newer version",
            "column \"",
            "no such column",
        ],
    ),
    (HealthCause::DatabaseMissing, &["database \""]),
    (HealthCause::NoLeader, &["no leader", "leadernotavailable"]),
    (
        HealthCause::TopicMissing,
        &["create the topic", "unknowntopic"],
    ),
    (
        HealthCause::GroupNotJoined,
        &[
            "cannot join the consumer group",
            "has not joined the consumer group",
        ],
    ),
    (HealthCause::NoProgress, &["no progress in the partitions"]),
    (
        HealthCause::Timeout,
        &[
            "timed out",
            "timeout",
            "timedout",
            "no response within",
            "no connection within",
            "no connack",
            "waiting for the database",
        ],
    ),
    (
        HealthCause::NotConnected,
        &[
            "not connected",
            "transport failure",
            "brokertransportfailure",
            "brokers are down",
            "allbrokersdown",
            "connection closed",
            "connection is closed",
            "connection reset",
            "broken pipe",
            "network is unreachable",
            "no route to host",
            "unexpected end of file",
            "communicating with database",
        ],
    ),
    (HealthCause::TaskEnded, &["has exited"]),
    (HealthCause::WriteFailed, &["batch write failed"]),
];

impl HealthCause {
    /// Returns the cause of an error.
    #[must_use]
    pub fn of_error(error: &str) -> Self {
        let error = error.to_lowercase();
        let is_match =
            |(_, texts): &&(Self, &[&str])| texts.iter().any(|text| error.contains(text));
        let matching_cause = CAUSES_OF_TEXTS.iter().find(is_match);
        matching_cause.map_or(Self::Unavailable, |(cause, _)| *cause)
    }

    /// Returns the text in the response of `/readiness`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ShuttingDown => "shutting down",
            Self::FileLost => "database file deleted or replaced",
            Self::RowsRejected => "rows rejected",
            Self::DiskFull => "disk full",
            Self::DatabaseLocked => "database locked",
            Self::AuthenticationFailed => "authentication failed",
            Self::PermissionDenied => "permission denied",
            Self::NameNotResolved => "name not resolved",
            Self::ConnectionRefused => "connection refused",
            Self::TlsFailed => "TLS failed",
            Self::DatabaseMissing => "database missing",
            Self::SchemaMissing => "schema missing",
            Self::SchemaOutdated => "schema outdated",
            Self::NoLeader => "no leader",
            Self::TopicMissing => "topic missing",
            Self::GroupNotJoined => "consumer group not joined",
            Self::NoProgress => "no progress",
            Self::Timeout => "timeout",
            Self::NotConnected => "not connected",
            Self::TaskEnded => "task ended",
            Self::WriteFailed => "write failed",
            Self::Unavailable => "unavailable",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_drivers_have_the_right_cause() {
        for (error, cause) in [
            (
                "the database is unavailable: error returned from database: password \
                 authentication failed for user \"cloud-connector\"",
                HealthCause::AuthenticationFailed,
            ),
            (
                "the database is unavailable: error returned from database: role \"connector\" \
                 does not exist",
                HealthCause::AuthenticationFailed,
            ),
            (
                "error returned from database: database \"inventory\" does not exist",
                HealthCause::DatabaseMissing,
            ),
            (
                "the database is unavailable: error communicating with database: Connection \
                 refused (os error 111)",
                HealthCause::ConnectionRefused,
            ),
            (
                "the database is unavailable: error communicating with database: failed to lookup \
                 address information: Name or service not known",
                HealthCause::NameNotResolved,
            ),
            (
                "the database has no schema yet; run `cloud-connector migrate`",
                HealthCause::SchemaMissing,
            ),
            (
                "the database is unavailable: no connection within 3s (postgres.acquire_timeout); \
                 check that the server responds, or increase postgres.max_connections",
                HealthCause::Timeout,
            ),
            (
                "not connected to the MQTT broker: I/O: Connection refused (os error 111)",
                HealthCause::ConnectionRefused,
            ),
            (
                "not connected to the MQTT broker: Connection refused, return code: \
                 `BadUserNamePassword`",
                HealthCause::AuthenticationFailed,
            ),
            (
                "the broker rejected a subscription; check its access rules",
                HealthCause::PermissionDenied,
            ),
            (
                "cannot reach Kafka (Meta data fetch error: BrokerTransportFailure (Local: Broker \
                 transport failure)); check kafka.brokers, kafka.security, kafka.ca, \
                 kafka.username and kafka.password, and whether Kafka is running",
                HealthCause::NotConnected,
            ),
            (
                "the database is unavailable: error returned from database: column \"x\" does not exist",
                HealthCause::SchemaOutdated,
            ),
            ("topic a: partition 3 has no leader", HealthCause::NoLeader),
            (
                "topic a does not exist; create the topic with `cloud-connector migrate --topics`",
                HealthCause::TopicMissing,
            ),
            (
                "cannot join the consumer group g: InconsistentGroupProtocol",
                HealthCause::GroupNotJoined,
            ),
            (
                "batch write failed; retrying: the database is unavailable: error returned from \
                 database: (code: 13) database or disk is full",
                HealthCause::DiskFull,
            ),
            (
                "batch write failed; retrying: something new",
                HealthCause::WriteFailed,
            ),
            ("something new", HealthCause::Unavailable),
        ] {
            assert_eq!(HealthCause::of_error(error), cause, "{error}");
        }
    }
}
