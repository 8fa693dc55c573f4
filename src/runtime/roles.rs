//! Which parts of the flow this process runs.

use anyhow::{Result, bail};

use crate::config::Config;

/// A part of the flow that can be a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// From MQTT to the queue.
    Ingest,
    /// From the queue to the store.
    Record,
    /// REST, and messages to clients.
    Api,
    /// Periodic work.
    Updaters,
}

impl Role {
    /// Every role there is.
    pub const ALL: [Self; 4] = [Self::Ingest, Self::Record, Self::Api, Self::Updaters];

    /// Its name on the command line.
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
    /// These; all of them if none is named.
    #[must_use]
    pub fn new(named: &[Role]) -> Self {
        let mut roles = if named.is_empty() {
            Role::ALL.to_vec()
        } else {
            named.to_vec()
        };
        roles.sort();
        roles.dedup();
        Self(roles)
    }

    /// Whether this one is among them.
    #[must_use]
    pub fn has(&self, role: Role) -> bool {
        self.0.contains(&role)
    }

    /// Their names.
    #[must_use]
    pub fn names(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|role| role.name()).collect();
        names.join(", ")
    }

    /// Whether these can be a process of their own with this configuration.
    ///
    /// # Errors
    /// When they share something with the others that lives in one process.
    pub fn check(&self, config: &Config) -> Result<()> {
        if self.0.len() == Role::ALL.len() {
            return Ok(());
        }
        if config.mqtt.url.is_none() {
            bail!(
                "--role: the embedded broker lives in one process, so all roles run together; leave --role out, or set mqtt.url to an outside broker"
            );
        }
        if config.postgres.host.is_empty() {
            bail!(
                "--role: SQLite lives in one process, so all roles run together; leave --role out, or set postgres.host"
            );
        }
        if config.kafka.brokers.is_none() && self.has(Role::Ingest) != self.has(Role::Record) {
            bail!(
                "--role: without a queue, ingest and record are one process; give both, or set kafka.brokers"
            );
        }
        Ok(())
    }
}
