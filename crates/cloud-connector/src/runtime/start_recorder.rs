//! Starts the recorder and the registration of catalog proxies.

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;

use super::{App, inventory_reporter};
use crate::config::Config;
use domain::Clock;
use integrations::sources::{self, SourceRegistrar, SourcesClient, SourcesSettings};
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorReceiver, HandshakeErrorSender, Recorder, RecorderConfig,
    RecorderDeps,
};
use service::health::Component;
use tenant::{MassLossDetector, TenantLookup};

/// Number of concurrent writers to PostgreSQL. Two writers have nearly twice the throughput of one
/// writer.
const POSTGRES_WRITERS: usize = 2;
/// Number of writers to SQLite. SQLite allows only one write transaction at a time.
const SQLITE_WRITERS: usize = 1;

impl App {
    /// Starts the recorder. Returns the receiving end of the channel for handshake errors. The
    /// caller must publish these errors to the clients.
    pub(super) fn start_recorder(
        &mut self,
        config: &Config,
        tenant_lookup: Arc<dyn TenantLookup>,
        clock: &Arc<dyn Clock>,
    ) -> Result<HandshakeErrorReceiver> {
        let (handshake_error_sender, receiver) = HandshakeErrorSender::channel();
        let uses_sqlite = config.postgres.host.is_empty();
        let deps = RecorderDeps {
            store: self.store.clone(),
            tenant_lookup: tenant_lookup.clone(),
            inventory_reporter: inventory_reporter(config, self.info.data_dir.as_deref())?,
            mass_loss_detector: MassLossDetector::new(config.tenant.allow_mass_loss),
            source_registrar: self.start_source_registrar(&config.sources)?,
            handshake_error_sender,
            clock: clock.clone(),
            config: RecorderConfig {
                max_batch_size: config.record.max_batch_size,
                tenant_lookup_timeout: config.record.tenant_lookup_timeout.get(),
                stale_online_window: config.record.stale_online_window.get(),
                writers: if uses_sqlite {
                    SQLITE_WRITERS
                } else {
                    POSTGRES_WRITERS
                },
                dead_letter_limits: DeadLetterLimits {
                    max_dead_letters_per_client: config.dead_letters.max_per_client,
                    max_dead_letters: config.dead_letters.max_total,
                },
            },
        };
        // The tenant lookup does not affect readiness. If the lookup is unavailable, the recorder
        // stores clients without a tenant, and a periodic job looks up their tenants later.
        self.health
            .add_description(Component::TenantLookup, move || tenant_lookup.health_note());
        let recorder = Recorder::start(deps, &self.recorder_tasks);
        let checked_recorder = recorder.clone();
        self.health.add_check(Component::Recorder, move || {
            let health = checked_recorder.health();
            async move { health }.boxed()
        });
        self.recorder = Some(recorder);
        Ok(receiver)
    }

    fn start_source_registrar(&self, config: &SourcesSettings) -> Result<Option<SourceRegistrar>> {
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
