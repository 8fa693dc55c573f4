//! The recorder, and the registration of catalog proxies (role `record`).

use std::sync::Arc;

use anyhow::Result;
use futures::FutureExt as _;

use super::build_context::BuildContext;
use super::inventory_reporter;
use integrations::sources::{RegistrationQueue, SourceRegistrar, SourcesClient, SourcesSettings};
use pipeline::record::{
    DeadLetterLimits, HandshakeErrorReceiver, HandshakeErrorSender, Recorder, RecorderConfig,
    RecorderDeps, Writer,
};
use service::Health;
use store::{EventRepository, MaintenanceRepository};
use tenant::{MassLossDetector, TenantLookup};

/// Name of the recorder in the response of `/readiness`.
const RECORDER_COMPONENT: &str = "recorder";
/// Name of the tenant lookup in the response of `/readiness`.
const TENANT_LOOKUP_COMPONENT: &str = "tenant_lookup";

/// Number of concurrent writers to PostgreSQL. Two writers have nearly twice the throughput of one
/// writer.
const POSTGRES_WRITERS: usize = 2;
/// Number of writers to SQLite. SQLite allows only one write transaction at a time.
const SQLITE_WRITERS: usize = 1;

/// The recorder, its writers, and the queue of source registrations that it fills.
pub(super) struct Recording {
    pub recorder: Recorder,
    pub writers: Vec<Writer>,
    /// The database whose search index is flushed periodically. `None` if it has no search index.
    pub search_index: Option<Arc<dyn MaintenanceRepository>>,
    /// The events to which positions must be given. `None` if the database gives the positions.
    pub events: Option<Arc<dyn EventRepository>>,
    /// `None` if the sources service is not configured.
    pub source_registrations: Option<SourceRegistrations>,
    tenant_lookup: Arc<dyn TenantLookup>,
}

/// The queue of source registrations, and the client that sends them to the sources service.
pub(super) struct SourceRegistrations {
    pub queue: RegistrationQueue,
    pub client: SourcesClient,
}

impl Recording {
    /// Creates the recorder. Also returns the handshake errors of the recorder, which must be
    /// published to the clients.
    pub fn new(context: &BuildContext<'_>) -> Result<(Self, HandshakeErrorReceiver)> {
        let config = context.config;
        let (handshake_error_sender, handshake_errors) = HandshakeErrorSender::channel();
        let (source_registrar, source_registrations) = source_registrations(&config.sources)?;
        let uses_sqlite = config.postgres.host.is_empty();
        let (recorder, writers) = Recorder::new(RecorderDeps {
            presence: context.repositories.presence.clone(),
            tenant_lookup: context.tenant_lookup.clone(),
            inventory_reporter: inventory_reporter(config, context.data_dir)?,
            mass_loss_detector: MassLossDetector::new(config.tenant.allow_mass_loss),
            source_registrar,
            handshake_error_sender,
            clock: context.clock.clone(),
            message_budget: context.message_budget.clone(),
            config: RecorderConfig {
                max_batch_size: config.record.max_batch_size,
                tenant_lookup_timeout: config.record.tenant_lookup_timeout.get(),
                stale_online_window: config.record.stale_online_window.get(),
                last_seen_interval: config.presence.last_seen_interval.get(),
                writers: if uses_sqlite {
                    SQLITE_WRITERS
                } else {
                    POSTGRES_WRITERS
                },
                dead_letter_limits: DeadLetterLimits {
                    max_dead_letters_per_client: config.dead_letters.max_per_client,
                },
            },
        });
        let recording = Self {
            recorder,
            writers,
            search_index: (!uses_sqlite).then(|| context.repositories.maintenance.clone()),
            events: (!uses_sqlite).then(|| context.repositories.events.clone()),
            source_registrations,
            tenant_lookup: context.tenant_lookup.clone(),
        };
        Ok((recording, handshake_errors))
    }

    /// Adds the health check of the recorder and the description of the tenant lookup.
    pub fn add_health_checks(&self, health: &Health) {
        let recorder = self.recorder.clone();
        health.add_check(RECORDER_COMPONENT, move || {
            let recorder_health = recorder.health();
            async move { recorder_health }.boxed()
        });
        // The tenant lookup does not affect readiness. If the lookup is unavailable, the recorder
        // stores clients without a tenant, and a periodic job looks up their tenants later.
        let tenant_lookup = self.tenant_lookup.clone();
        health.add_description(TENANT_LOOKUP_COMPONENT, move || tenant_lookup.health_note());
    }
}

/// Creates the queue of source registrations. The registrar adds registrations to the queue.
fn source_registrations(
    settings: &SourcesSettings,
) -> Result<(Option<SourceRegistrar>, Option<SourceRegistrations>)> {
    let Some(url) = &settings.url else {
        return Ok((None, None));
    };
    let client = SourcesClient::new(url, settings.timeout.get())?;
    let (registrar, queue) = SourceRegistrar::channel();
    Ok((Some(registrar), Some(SourceRegistrations { queue, client })))
}
