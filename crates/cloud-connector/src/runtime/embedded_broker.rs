//! The embedded broker, which receives messages from clients and passes them to the recorder.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use super::build_context::BuildContext;
use broker::{Broker, Listeners, PendingWrite};
use delivery::ResponseMatchingSink;
use domain::{ClientId, OfflineReason};
use pipeline::ingest::embedded_broker::RecorderSink;
use pipeline::record::{self, Recorder};
use service::{Health, TaskGroup};
use store::MaintenanceRepository;

/// Name of the embedded broker in the response of `/readiness`.
const COMPONENT: &str = "embedded_broker";

/// The embedded broker, its listeners, and what its startup sweep needs.
pub(super) struct EmbeddedBroker {
    pub broker: Broker,
    pub listeners: Listeners,
    pub tls_reload_interval: Duration,
    pub startup_sweep: StartupSweep,
}

impl EmbeddedBroker {
    pub fn new(context: &BuildContext<'_>, listeners: Listeners, recorder: &Recorder) -> Self {
        let settings = &context.config.broker;
        let sink = RecorderSink::new(recorder.clone(), context.topics.clone());
        let sink = ResponseMatchingSink::new(sink, context.responses.clone());
        let broker = Broker::new(
            settings.clone(),
            context.config.client_budget,
            context.topics.clone(),
            Arc::new(sink),
            context.clock.clone(),
            context.message_budget.clone(),
        );
        Self {
            startup_sweep: StartupSweep {
                maintenance: context.repositories.maintenance.clone(),
                reconnect_grace: settings.reconnect_grace.get(),
                broker: broker.clone(),
            },
            broker,
            listeners,
            tls_reload_interval: settings.tls.reload_interval.get(),
        }
    }

    pub fn add_health_check(&self, health: &Health) {
        let broker = self.broker.clone();
        health.add_check(COMPONENT, move || {
            let broker_health = broker.health();
            async move { broker_health }.boxed()
        });
    }
}

/// Ends the recorded connections of clients that have not reconnected after a restart.
pub(super) struct StartupSweep {
    maintenance: Arc<dyn MaintenanceRepository>,
    reconnect_grace: Duration,
    broker: Broker,
}

impl StartupSweep {
    pub async fn run(self, tasks: TaskGroup) {
        let end_if_not_connected = move |client: &ClientId| {
            self.broker
                .report_if_disconnected(client, OfflineReason::BrokerRestart)
                .map(PendingWrite::wait_until_durable)
        };
        record::run_startup_sweep(
            self.maintenance,
            self.reconnect_grace,
            end_if_not_connected,
            tasks,
        )
        .await;
    }
}
