//! Measures the event streams of the role `api` with PostgreSQL: latency and memory with many streams and
//! events, and what the streams cost the recorder.
//!
//! The readers run in a process of their own at the lowest priority, because they stand for other
//! machines. The role `record` gives positions to the events.
//!
//! Start this benchmark with `make bench-events`. It prints a table, writes target/bench/events.json, and
//! exits with 1 if a limit is missed. Arguments select parts: delivery, recording.

mod delivery;
mod readers;
mod recording;
#[path = "../record/rows.rs"]
#[allow(dead_code, reason = "this benchmark uses only a part of the module")]
mod rows;

#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use anyhow::Result;
use support::report::{self, Measurement};
use support::repository_root;
use test_support::cluster::{Cluster, ConnectorProcess};

const RESULT_FILE: &str = "target/bench/events.json";
const PART_NAMES: [&str; 2] = ["delivery", "recording"];
/// The organization of the rows that `rows` creates. It gets a tenth of all events.
const ORG_ID: &str = "10000";
/// Number of organizations.
const ORG_COUNT: usize = 1000;
/// Number of streams, which is the limit for a key and an organization times [`STREAM_ORG_COUNT`].
const STREAM_COUNT: usize = 200;
/// Number of organizations with streams.
const STREAM_ORG_COUNT: usize = 10;

fn main() -> ExitCode {
    let result = match readers::reader_arguments() {
        Some(arguments) => readers::run(&arguments).map(|()| true),
        None => run_parts(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-events: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the selected parts. Returns whether all limits are met.
fn run_parts() -> Result<bool> {
    let parts = support::select_parts(support::args_without_flags(), &PART_NAMES)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut all_measurements = Vec::new();
    for part in parts {
        let measurements: Vec<Measurement> = runtime.block_on(async {
            match part.as_str() {
                "delivery" => delivery::measure().await,
                _ => recording::measure().await,
            }
        })?;
        report::print_table(&measurements);
        report::write_json(&measurements, &repository_root().join(RESULT_FILE))?;
        all_measurements.extend(measurements);
    }
    Ok(all_measurements.iter().all(Measurement::meets_goal))
}

/// Returns the organization with this index, from 0 to [`ORG_COUNT`].
fn org_id(index: usize) -> String {
    let first: usize = 10_000;
    (first + index).to_string()
}

/// The processes that record and serve events.
struct Processes {
    cluster: Cluster,
    api: ConnectorProcess,
    _record: ConnectorProcess,
}

impl Processes {
    async fn start() -> Self {
        let cluster = Cluster::new().await.set("log.level", "warn");
        let cluster = cluster.set("http.access_log", "false");
        let record = cluster.start(&["record"]).await;
        let api = cluster.start(&["api"]).await;
        Self {
            cluster,
            api,
            _record: record,
        }
    }

    /// Returns the position of the newest event, and the number of events without a position.
    async fn positions(&self) -> Result<(i64, i64)> {
        let sql = "SELECT position, (SELECT count(*) FROM event_outbox) FROM event_positions
                    WHERE name = 'sequencer'";
        let mut database = self.cluster.connect_to_database().await;
        Ok(sqlx::query_as(sql).fetch_one(&mut database).await?)
    }

    /// Waits until all events have positions. Returns the position of the newest event.
    async fn wait_until_sequenced(&self) -> Result<i64> {
        let interval = std::time::Duration::from_millis(50);
        support::process::eventually("all events have positions", interval, || async {
            let (position, outbox_count) = self.positions().await?;
            Ok((outbox_count == 0).then_some(position))
        })
        .await
    }
}
