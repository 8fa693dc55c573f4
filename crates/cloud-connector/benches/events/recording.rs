//! What event streams cost the recorder: two writers that record changed clients, with and without 200
//! streams. Each changed client makes an event.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use domain::{OrgId, Tenant, Timestamp};
use store::{
    MaintenanceRepository as _, PresenceBatch, PresenceRepository as _, TenantChange, WriteOutcome,
};
use store_postgres::PostgresStore;

use super::readers::ReaderProcess;
use super::support::load_config;
use super::support::report::{Goal, Measurement, median};
use super::{ORG_COUNT, Processes, STREAM_COUNT, STREAM_ORG_COUNT, org_id, rows};

/// Number of clients that each run changes.
const CLIENT_COUNT: usize = 20_000;
const WRITER_COUNT: usize = 2;
/// Number of runs with streams, and of runs without streams.
const RUN_COUNT: usize = 7;
const MIN_RATIO: f64 = 0.8;
const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub async fn measure() -> Result<Vec<Measurement>> {
    let processes = Processes::start().await;
    let config = load_config(processes.cluster.env_vars().to_vec())?;
    let recorder = Recorder {
        store: Arc::new(PostgresStore::new(&config.postgres)),
        client_ids: rows::random_client_ids(CLIENT_COUNT),
    };
    // The cost of the first batches differs, because the plans and the caches are empty.
    for revision in 0..2 {
        recorder.record(revision).await?;
        processes.wait_until_sequenced().await?;
    }
    let stream_counts: Vec<(String, usize)> = (0..STREAM_ORG_COUNT)
        .map(|index| (org_id(index), STREAM_COUNT / STREAM_ORG_COUNT))
        .collect();
    let (mut rates_with, mut rates_without, mut received) = (Vec::new(), Vec::new(), 0);
    for run in 0..RUN_COUNT {
        let revision = 2 + 2 * run;
        rates_without.push(recorder.record(revision).await?);
        processes.wait_until_sequenced().await?;

        let mut readers = ReaderProcess::start(&processes.api.http_url, &stream_counts).await?;
        rates_with.push(recorder.record(revision + 1).await?);
        processes.wait_until_sequenced().await?;
        received += wait_for_events(&mut readers).await?;
    }
    ensure!(received > 0, "the readers have received no events");
    recorder.store.close().await;
    let (with, without) = (median(&rates_with), median(&rates_without));
    Ok(vec![Measurement {
        name: "changed clients, with ÷ without 200 streams".to_owned(),
        details: format!("{with:.0} ÷ {without:.0} rows/s, {received} events received"),
        value: with / without,
        unit: "",
        goal: Goal::AtLeast(MIN_RATIO),
    }])
}

/// Waits until the streams of the first organization have received an event of each of its clients, so that
/// the next run does not start before. Returns the number of events of all streams.
async fn wait_for_events(readers: &mut ReaderProcess) -> Result<u64> {
    let expected =
        u64::try_from(CLIENT_COUNT / 10)? * u64::try_from(STREAM_COUNT / STREAM_ORG_COUNT)?;
    let deadline = Instant::now() + Duration::from_mins(1);
    let mut received = 0;
    while received < expected {
        ensure!(Instant::now() < deadline, "{received} of {expected} events");
        tokio::time::sleep(POLL_INTERVAL).await;
        received += readers.report().await?.events;
    }
    Ok(received)
}

struct Recorder {
    store: Arc<PostgresStore>,
    client_ids: Vec<String>,
}

impl Recorder {
    /// Records an online message with another tag of each client. Returns the rows per second.
    async fn record(&self, revision: usize) -> Result<f64> {
        let mut batches_by_writer: [Vec<PresenceBatch>; WRITER_COUNT] = Default::default();
        let batches = rows::upsert_batches(&self.client_ids, revision);
        for (index, mut upserts) in batches.into_iter().enumerate() {
            for upsert in &mut upserts {
                // The organization of a client depends only on the client.
                let id = upsert.client_id.as_str();
                let hash = usize::from_str_radix(&id[..7], 16)?;
                let is_first = hash % 10 == 0;
                let org = if is_first {
                    0
                } else {
                    1 + hash / 10 % (ORG_COUNT - 1)
                };
                upsert.tenant = TenantChange::Found(Tenant {
                    org_id: OrgId::new(&org_id(org))?,
                    account: String::new(),
                });
            }
            batches_by_writer[index % WRITER_COUNT].push(PresenceBatch {
                upserts,
                ..PresenceBatch::default()
            });
        }
        let started_at = Instant::now();
        let writers = batches_by_writer
            .map(|batches| tokio::spawn(write_batches(self.store.clone(), batches)));
        for result in futures::future::try_join_all(writers).await? {
            result?;
        }
        Ok(CLIENT_COUNT as f64 / started_at.elapsed().as_secs_f64())
    }
}

async fn write_batches(store: Arc<PostgresStore>, batches: Vec<PresenceBatch>) -> Result<()> {
    for mut batch in batches {
        rows::apply_stored_states(&store, &mut batch, true).await?;
        let outcome = store.record_batch(&batch, &[], Timestamp::now()).await?;
        ensure!(outcome == WriteOutcome::Committed, "{outcome:?}");
    }
    Ok(())
}
