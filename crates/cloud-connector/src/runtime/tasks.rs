//! Runs the components of a process. This module lists all essential tasks, with their names and
//! their shutdown stages.

use tokio::net::TcpListener;

use super::background::run_metrics_upkeep;
use super::composition::Components;
use super::embedded_broker::EmbeddedBroker;
use super::event_sequencer::run_event_sequencer;
use super::file_check::FileCheck;
use super::liveness_sweep::LivenessSweepParts;
use super::recording::Recording;
use super::search_index::run_search_index_flushes;
use super::shutdown_order::Stages;
use broker::Listeners;
use integrations::sources::process_registrations;
use network::tls_server::reload_on_change;
use pipeline::ingest::recording_progress::store_recording_progress;

/// Spawns the tasks of all components.
pub(super) fn spawn_all(components: Components, stages: &Stages) {
    let Stages {
        http,
        publisher,
        ingest,
        background,
        ..
    } = stages;
    background.spawn_essential("metrics_upkeep", run_metrics_upkeep(background.clone()));
    if let Some(recording) = components.recording {
        spawn_recording(recording, stages);
    }
    if let Some(embedded_broker) = components.embedded_broker {
        spawn_embedded_broker(embedded_broker, stages);
    }
    if let Some(mqtt_ingest) = components.mqtt_ingest {
        ingest.spawn_essential("mqtt_ingest", mqtt_ingest.ingest.run(ingest.clone()));
    }
    if let Some(liveness) = components.recording_progress {
        let readers = components.topic_readers.iter();
        let consumers = readers.map(|reader| reader.progress.clone()).collect();
        let storing = store_recording_progress(consumers, liveness, ingest.clone());
        ingest.spawn_essential("recording_progress", storing);
    }
    for topic_reader in components.topic_readers {
        let reader = topic_reader.reader.run(ingest.clone());
        ingest.spawn_essential(topic_reader.task_name, reader);
    }
    if let Some(replay) = components.dead_letter_replay {
        ingest.spawn_essential("dead_letter_replay", replay.run(ingest.clone()));
    }
    for connection in components
        .publishing
        .into_iter()
        .flat_map(|it| it.connections)
    {
        let staying_connected = connection.client.stay_connected(publisher.clone());
        publisher.spawn_essential(connection.task_name, staying_connected);
    }
    if let Some(handshake_errors) = components.handshake_errors {
        let publishing = handshake_errors.publish(background.clone());
        background.spawn_essential("handshake_errors", publishing);
    }
    if let Some(jobs) = components.periodic_jobs {
        background.spawn_essential("periodic_jobs", jobs.run(background.clone()));
    }
    if let Some(forwarder) = components.event_forwarder {
        background.spawn_essential("event_forwarder", forwarder.run(background.clone()));
    }
    if let Some(LivenessSweepParts { sweep, connection }) = components.liveness_sweep {
        let staying_connected = connection.stay_connected(publisher.clone());
        publisher.spawn_essential("mqtt_liveness", staying_connected);
        background.spawn_essential("liveness_sweep", sweep.run(background.clone()));
    }
    if let Some(tls) = components.http.tls {
        let interval = components.http.tls_reload_interval;
        let reload = reload_on_change(tls, interval, background.clone());
        background.spawn_essential("http_tls_reload", reload);
    }
    for server in components.http.servers {
        let serving = api::serve(server.listener, server.tls, server.router, http.clone());
        http.spawn_essential(server.task_name, serving);
    }
}

/// Spawns the task that checks the files in the data folder.
pub(super) fn spawn_file_check(file_check: FileCheck, stages: &Stages) {
    let background = &stages.background;
    background.spawn_fallible("file_check", file_check.run(background.clone()));
}

fn spawn_recording(recording: Recording, stages: &Stages) {
    let Stages {
        recorder,
        background,
        ..
    } = stages;
    for writer in recording.writers {
        recorder.spawn_essential(writer.task_name(), writer.run(recorder.clone()));
    }
    if let Some(database) = recording.search_index {
        let flushing = run_search_index_flushes(database, background.clone());
        background.spawn_essential("search_index_flushes", flushing);
    }
    if let Some(events) = recording.events {
        let sequencing = run_event_sequencer(events, background.clone());
        background.spawn_essential("event_sequencer", sequencing);
    }
    if let Some(registrations) = recording.source_registrations {
        let processing = process_registrations(
            registrations.queue,
            registrations.client,
            background.clone(),
        );
        background.spawn_essential("source_registrations", processing);
    }
}

fn spawn_embedded_broker(embedded: EmbeddedBroker, stages: &Stages) {
    let Stages { broker, ingest, .. } = stages;
    let accept_connections = |task_name, listener: Option<TcpListener>, certificates| {
        if let Some(listener) = listener {
            let accepting =
                embedded
                    .broker
                    .clone()
                    .accept_connections(listener, certificates, broker.clone());
            broker.spawn_essential(task_name, accepting);
        }
    };
    let Listeners {
        plain,
        websocket,
        tls,
    } = embedded.listeners;
    accept_connections("broker_listener", plain, None);
    accept_connections("broker_websocket_listener", websocket, None);
    if let Some(tls) = tls {
        let certificates = tls.certificates;
        let interval = embedded.tls_reload_interval;
        let reload = reload_on_change(certificates.clone(), interval, broker.clone());
        broker.spawn_essential("broker_tls_reload", reload);
        let task_name = "broker_tls_listener";
        accept_connections(task_name, tls.mqtt, Some(certificates.clone()));
        let task_name = "broker_tls_websocket_listener";
        accept_connections(task_name, tls.websocket, Some(certificates));
    }
    let housekeeping = embedded.broker.run_housekeeping(broker.clone());
    broker.spawn_essential("broker_housekeeping", housekeeping);
    ingest.spawn_one_shot("startup_sweep", embedded.startup_sweep.run(ingest.clone()));
}
