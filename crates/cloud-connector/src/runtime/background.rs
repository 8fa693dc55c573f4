//! Background work: periodic jobs (role `updaters`) and the aggregation of metrics.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::build_context::BuildContext;
use super::mqtt_ingest::process_name;
use super::tenant_lookup_job;
use integrations::events::KafkaEventSink;
use jobs::{EventForwarder, EventRetention, MessageJobs, PeriodicJobs};
use kafka::Producer;
use service::TaskGroup;
use service::metrics::prometheus_handle;

/// Interval at which recorded histogram samples are aggregated. Without aggregation, the samples
/// would use more and more memory.
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Creates the periodic jobs.
pub(super) fn periodic_jobs(context: &BuildContext<'_>) -> Result<PeriodicJobs> {
    let config = context.config;
    Ok(PeriodicJobs {
        maintenance: context.repositories.maintenance.clone(),
        dead_letters: context.repositories.dead_letters.clone(),
        clients: context.repositories.clients.clone(),
        event_retention: Some(EventRetention {
            events: context.repositories.events.clone(),
            retention: config.events.retention.get(),
            waits_for_forwarder: config.forwards_events(),
        }),
        clock: context.clock.clone(),
        pause_between_runs: config.updaters.interval.get(),
        disconnected_retention: config.updaters.disconnected_retention.get(),
        dead_letter_retention: config.dead_letters.retention.get(),
        max_dead_letters: config.dead_letters.max_total.into(),
        history_retention: config.presence.history_retention.get(),
        max_history_per_client: config.presence.history_per_client,
        messages: Some(MessageJobs {
            messages: context.repositories.messages.clone(),
            idempotency: context.repositories.idempotency.clone(),
            retention: config.messages.retention.get(),
            max_per_organization: config.messages.max_per_organization,
        }),
        lookup_job_runner: tenant_lookup_job(
            config,
            context.repositories.lookup_queue.clone(),
            context.tenant_lookup.clone(),
            context.data_dir,
            context.clock.clone(),
        )?,
    })
}

/// Creates the forwarder of events to Kafka.
pub(super) fn event_forwarder(context: &BuildContext<'_>) -> Result<EventForwarder> {
    let config = context.config;
    let producer = Producer::new_best_effort(&config.kafka)?;
    Ok(EventForwarder {
        events: context.repositories.events.clone(),
        sink: Arc::new(KafkaEventSink::new(
            producer,
            config.events.kafka_topic.clone(),
        )),
        holder: process_name(config),
    })
}

/// Aggregates recorded histogram samples until `tasks` is cancelled.
pub(super) async fn run_metrics_upkeep(tasks: TaskGroup) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(METRICS_UPKEEP_INTERVAL) => {}
            () = tasks.cancelled() => return,
        }
        prometheus_handle().run_upkeep();
    }
}
