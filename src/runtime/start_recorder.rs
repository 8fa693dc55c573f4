//! Starts the recorder and the registration of catalog proxies.

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;

use super::{App, inventory_reporter};
use crate::config::{Config, Sources};
use crate::domain::Clock;
use crate::integrations::sources::{self, SourceRegistrar, SourcesClient};
use crate::record::{
    DeadLetterLimits, HandshakeErrorReceiver, HandshakeErrorSender, Recorder, RecorderConfig,
    RecorderDeps,
};
use crate::telemetry::health::Component;
use crate::tenant::{MassLossDetector, TenantLookup};

/// Two concurrent writers nearly double the throughput of PostgreSQL.
const POSTGRES_WRITERS: usize = 2;
/// SQLite allows one write transaction at a time.
const SQLITE_WRITERS: usize = 1;

impl App {
    /// Starts the recorder. The returned receiver yields the errors that must be published to
    /// clients with invalid handshakes.
    pub(super) fn start_recorder(
        &mut self,
        config: &Config,
        tenant_lookup: Arc<dyn TenantLookup>,
        clock: &Arc<dyn Clock>,
    ) -> Result<HandshakeErrorReceiver> {
        let (handshake_errors, receiver) = HandshakeErrorSender::channel();
        let is_sqlite = config.postgres.host.is_empty();
        let deps = RecorderDeps {
            store: self.store.clone(),
            tenant_lookup: tenant_lookup.clone(),
            inventory: inventory_reporter(config, self.info.data_dir.as_deref())?,
            mass_loss: MassLossDetector::new(config.tenant.allow_mass_loss),
            source_registrar: self.start_source_registrar(&config.sources)?,
            handshake_errors,
            clock: clock.clone(),
            config: RecorderConfig {
                max_batch_size: config.record.max_batch_size,
                tenant_lookup_timeout: config.record.tenant_lookup_timeout.get(),
                stale_online_window: config.record.stale_online_window.get(),
                writers: if is_sqlite {
                    SQLITE_WRITERS
                } else {
                    POSTGRES_WRITERS
                },
                dead_letter_limits: DeadLetterLimits {
                    max_per_client: config.dead_letters.max_per_client,
                    max_total: config.dead_letters.max_total,
                },
            },
        };
        // A lookup outage does not stop the recorder: clients without a tenant are looked up later.
        self.health
            .add_info(Component::TenantLookup, move || tenant_lookup.health_note());
        let recorder = Recorder::start(deps, &self.recorder_tasks);
        let checked = recorder.clone();
        self.health.add(Component::Recorder, move || {
            let health = checked.health();
            async move { health }.boxed()
        });
        self.recorder = Some(recorder);
        Ok(receiver)
    }

    fn start_source_registrar(&self, config: &Sources) -> Result<Option<SourceRegistrar>> {
        let Some(url) = &config.url else {
            return Ok(None);
        };
        let client = SourcesClient::new(url, config.timeout.get())?;
        let (registrar, queue) = SourceRegistrar::channel();
        let tasks = &self.background_tasks;
        tasks.spawn(sources::process_registrations(queue, client, tasks.clone()));
        Ok(Some(registrar))
    }
}
