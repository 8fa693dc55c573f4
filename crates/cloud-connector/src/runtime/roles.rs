//! Roles: the parts of the connector that can run as separate processes.

use anyhow::{Result, bail};

use crate::config::Config;

/// A part of the connector that can run as a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Receives messages from MQTT and produces them to Kafka.
    Ingest,
    /// Consumes messages from Kafka and writes them to the database.
    Record,
    /// Serves the REST API and publishes messages to clients.
    Api,
    /// Runs periodic jobs.
    Updaters,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Ingest, Self::Record, Self::Api, Self::Updaters];

    /// Returns the role's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Record => "record",
            Self::Api => "api",
            Self::Updaters => "updaters",
        }
    }
}

/// The roles of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Roles(Vec<Role>);

impl Roles {
    /// Creates a set of these roles. An empty slice means all roles.
    #[must_use]
    pub fn new(roles: &[Role]) -> Self {
        let mut roles = if roles.is_empty() {
            Role::ALL.to_vec()
        } else {
            roles.to_vec()
        };
        roles.sort();
        roles.dedup();
        Self(roles)
    }

    /// Returns whether the set contains this role.
    #[must_use]
    pub fn contains(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// Returns whether a process with these roles uses the database.
    pub(super) fn use_database(&self) -> bool {
        [Role::Record, Role::Api, Role::Updaters]
            .iter()
            .any(|role| self.contains(*role))
    }

    /// Returns the names of the roles, separated by commas.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|role| role.name()).collect();
        names.join(", ")
    }

    /// Checks that the configuration allows these roles to run without the other roles in the same
    /// process.
    ///
    /// # Errors
    /// When some roles are missing, but the configuration requires all roles in one process. This
    /// is the case for the embedded broker and for SQLite. Without Kafka, `ingest` and `record`
    /// must run in the same process.
    pub fn check_config(&self, config: &Config) -> Result<()> {
        if self.0.len() == Role::ALL.len() {
            return Ok(());
        }
        if config.mqtt.url.is_none() {
            bail!(
                "--role: the embedded broker needs all roles in one process; omit --role, or set \
                 mqtt.url to an external broker"
            );
        }
        if config.postgres.host.is_empty() {
            bail!(
                "--role: SQLite needs all roles in one process; omit --role, or set postgres.host"
            );
        }
        if config.kafka.brokers.is_none()
            && self.contains(Role::Ingest) != self.contains(Role::Record)
        {
            bail!(
                "--role: without Kafka, ingest and record must run in one process; specify both \
                 roles, or set kafka.brokers"
            );
        }
        Ok(())
    }
}
