//! The faults that the test injects.

use std::fmt;
use std::time::Duration;

/// A fault that the test injects into a process or a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Kills a process with SIGKILL, and starts the process again after the downtime.
    Kill {
        process_index: usize,
        downtime: Duration,
    },
    /// Pauses a process with SIGSTOP, and resumes the process with SIGCONT after the duration.
    Pause {
        process_index: usize,
        duration: Duration,
    },
    /// Stops a process with SIGTERM, and starts the process again.
    Restart { process_index: usize },
    /// Stops or kills a service, and starts the service again after the downtime.
    RestartService {
        service: ServiceKind,
        with_sigkill: bool,
        downtime: Duration,
    },
    /// Pauses all processes of PostgreSQL with SIGSTOP for the duration. The kernel still accepts
    /// connections.
    FreezePostgres { duration: Duration },
    /// Drops all packets from and to PostgreSQL for the duration. No RST is sent.
    DropPostgresPackets { duration: Duration },
    /// Deletes the Kafka topics after all their messages are recorded, and creates them again after
    /// the downtime with `cloud-connector migrate --topics`. The clients send messages again when
    /// the topics are deleted.
    RecreateTopics { downtime: Duration },
    /// Fills the file system of the data folder for the duration.
    FillDisk { duration: Duration },
    /// Restarts a process with a clock that differs from the machine's clock.
    SkewClock { process_index: usize, seconds: i64 },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServiceKind {
    Mosquitto,
    Kafka,
    Postgres,
}

/// A kind of fault, for the option `--faults` and for the totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    Kill,
    Pause,
    Restart,
    ServiceRestart,
    PostgresFreeze,
    PostgresHalfOpen,
    TopicRecreation,
    DiskFull,
    ClockSkew,
    /// Clients send responses of about 1 MB. The clients inject this fault.
    LargeResponse,
}

impl FaultKind {
    pub const ALL: [Self; 10] = [
        Self::Kill,
        Self::Pause,
        Self::Restart,
        Self::ServiceRestart,
        Self::PostgresFreeze,
        Self::PostgresHalfOpen,
        Self::TopicRecreation,
        Self::DiskFull,
        Self::ClockSkew,
        Self::LargeResponse,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Restart => "restart",
            Self::ServiceRestart => "service-restart",
            Self::PostgresFreeze => "postgres-freeze",
            Self::PostgresHalfOpen => "postgres-half-open",
            Self::TopicRecreation => "topic-recreation",
            Self::DiskFull => "disk-full",
            Self::ClockSkew => "clock-skew",
            Self::LargeResponse => "large-response",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Fault {
    pub fn kind(self) -> FaultKind {
        match self {
            Self::Kill { .. } => FaultKind::Kill,
            Self::Pause { .. } => FaultKind::Pause,
            Self::Restart { .. } => FaultKind::Restart,
            Self::RestartService { .. } => FaultKind::ServiceRestart,
            Self::FreezePostgres { .. } => FaultKind::PostgresFreeze,
            Self::DropPostgresPackets { .. } => FaultKind::PostgresHalfOpen,
            Self::RecreateTopics { .. } => FaultKind::TopicRecreation,
            Self::FillDisk { .. } => FaultKind::DiskFull,
            Self::SkewClock { .. } => FaultKind::ClockSkew,
        }
    }

    pub fn is_broker_restart(self) -> bool {
        let broker = ServiceKind::Mosquitto;
        matches!(self, Self::RestartService { service, .. } if service == broker)
    }
}
