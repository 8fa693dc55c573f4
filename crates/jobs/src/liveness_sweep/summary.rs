//! The result of a pass of the sweep.

use std::fmt;

/// Why a pass ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SweepStop {
    /// All connections were read.
    #[default]
    Done,
    /// The guard did not allow to end connections.
    Guard,
    /// Recording did not process everything that was received until the deadline of the pings.
    RecordingBehind,
    /// No process of the role `ingest` was connected to the broker during the pings, or it reconnected.
    IngestUnavailable,
    /// The broker accepted no ping.
    BrokerUnavailable,
}

impl SweepStop {
    /// Returns the value of the metric label `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Guard => "guard",
            Self::RecordingBehind => "recording_behind",
            Self::IngestUnavailable => "ingest_unavailable",
            Self::BrokerUnavailable => "broker_unavailable",
        }
    }

    /// Returns the cause and the fix, for operators.
    #[must_use]
    pub fn explanation(self) -> &'static str {
        match self {
            Self::Done => "all connections were read",
            Self::Guard => {
                "fewer than half of the pinged clients answered, so no connection was ended; check \
                 that the broker lets the user of mqtt.username publish to the clients' topics, and \
                 that ingest and record run; if the clients are really gone, run \
                 `cloud-connector update-presence --force`"
            }
            Self::RecordingBehind => {
                "recording has not processed everything that was received until the deadline of the \
                 pings; check the role `record` and its lag"
            }
            Self::IngestUnavailable => {
                "no process of the role `ingest` was connected to the broker all the time; check the \
                 role `ingest`"
            }
            Self::BrokerUnavailable => {
                "the broker accepted no ping; check mqtt.url and whether the broker is running"
            }
        }
    }
}

/// What a pass did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SweepSummary {
    /// Number of connections that were read.
    pub checked: u64,
    /// Number of silent connections that were found.
    pub silent: u64,
    /// Number of silent connections whose client answered, or whose handshake is retained.
    pub answered: u64,
    /// Number of ended connections.
    pub expired: u64,
    /// Number of connections without an answer that were not ended.
    pub kept: u64,
    /// Why the pass ended.
    pub stop: SweepStop,
}

impl SweepSummary {
    /// Returns whether the pass could not be completed.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        self.stop != SweepStop::Done
    }
}

impl fmt::Display for SweepSummary {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            checked,
            silent,
            answered,
            expired,
            kept,
            stop,
        } = self;
        write!(
            formatter,
            "{checked} checked, {silent} silent, {answered} answered, {expired} expired, {kept} kept"
        )?;
        match stop {
            SweepStop::Done => Ok(()),
            stop => write!(formatter, "; stopped: {}", stop.explanation()),
        }
    }
}
