//! Measures `Store::record_batch` on PostgreSQL. The baseline is COPY of the same rows.

use std::time::Instant;

use anyhow::{Result, ensure};
use cloud_connector::runtime;
use domain::Timestamp;
use sqlx::Connection as _;
use store::{ConnectionUpsert, PresenceBatch, Repositories, WriteOutcome};

use super::RUN_COUNT;
use super::rows::{self, BATCH_SIZE};
use super::support::report::{Goal, Measurement, median};
use super::support::{Services, load_config};

/// Number of rows that each run writes.
const ROWS_PER_RUN: usize = 40_000;
/// Number of tasks that write batches in parallel.
const WRITER_COUNT: usize = 2;

/// Measures two writers with new clients (inserts) and with known clients (updates). The baselines
/// are COPY on one connection and COPY on two connections.
pub async fn measure_new_and_known_clients(services: &Services) -> Result<Vec<Measurement>> {
    let (mut new_rates, mut known_rates) = (vec![], vec![]);
    let (mut copy_rates, mut two_copies_rates) = (vec![], vec![]);
    for run in 0..RUN_COUNT {
        let client_ids = rows::random_client_ids(ROWS_PER_RUN);
        let inserts = rows::upsert_batches(&client_ids, run);
        let updates = rows::upsert_batches(&client_ids, run + 1);
        let copy_input = rows::to_copy_input(&inserts);

        let database = services.create_database().await?;
        let repositories = open_store(services, &database).await?;
        new_rates.push(record_batches(services, &repositories, &inserts).await?);
        copy_rates.push(copy_batches(services, &copy_input, 1).await?);
        known_rates.push(record_batches(services, &repositories, &updates).await?);
        two_copies_rates.push(copy_batches(services, &copy_input, 2).await?);
        repositories.maintenance.close().await;
        services.drop_database(&database).await?;
    }
    let (new_rate, known_rate) = (median(&new_rates), median(&known_rates));
    let (copy_rate, two_copies_rate) = (median(&copy_rates), median(&two_copies_rates));
    let compare_with_copy = |clients: &str, rate: f64, min_ratio| Measurement {
        name: format!("record_batch, {clients}, two writers"),
        details: format!("{rate:.0} rows/s ÷ {copy_rate:.0} by COPY on one connection"),
        value: rate / copy_rate,
        unit: "",
        goal: Goal::AtLeast(min_ratio),
    };
    let compare_with_two_copies = |clients: &str, rate: f64| Measurement {
        name: format!("record_batch, {clients}, compared with COPY on two connections"),
        details: format!("{rate:.0} ÷ {two_copies_rate:.0} rows/s"),
        value: rate / two_copies_rate,
        unit: "",
        goal: Goal::None,
    };
    Ok(vec![
        compare_with_copy("new clients", new_rate, 0.9),
        compare_with_two_copies("new clients", new_rate),
        compare_with_copy("known clients", known_rate, 0.7),
        compare_with_two_copies("known clients", known_rate),
    ])
}

async fn open_store(services: &Services, database: &str) -> Result<Repositories> {
    let config = load_config(services.postgres_env_vars(database))?;
    runtime::open_store_for_cli(&config).await
}

/// Writes the batches with two writers. Returns the rows per second of both writers together.
async fn record_batches(
    services: &Services,
    repositories: &Repositories,
    batches: &[Vec<ConnectionUpsert>],
) -> Result<f64> {
    services.checkpoint().await?;
    let mut batches_by_writer: Vec<Vec<PresenceBatch>> =
        (0..WRITER_COUNT).map(|_| vec![]).collect();
    for (index, upserts) in batches.iter().enumerate() {
        batches_by_writer[index % WRITER_COUNT].push(PresenceBatch {
            upserts: upserts.clone(),
            ..PresenceBatch::default()
        });
    }
    let rows: usize = batches.iter().map(Vec::len).sum();
    let started_at = Instant::now();
    let writers = batches_by_writer.into_iter().map(|batches| {
        let presence = repositories.presence.clone();
        tokio::spawn(async move {
            for batch in batches {
                let outcome = presence.record_batch(&batch, &[], Timestamp::now()).await?;
                ensure!(outcome == WriteOutcome::Committed, "{outcome:?}");
            }
            Ok(())
        })
    });
    for result in futures::future::join_all(writers).await {
        result??;
    }
    Ok(rows as f64 / started_at.elapsed().as_secs_f64())
}

/// Copies the batches into an empty table, over `connection_count` database connections in
/// parallel. Returns the rows per second of all database connections together.
async fn copy_batches(
    services: &Services,
    batches: &[Vec<u8>],
    connection_count: usize,
) -> Result<f64> {
    let database = services.create_database().await?;
    services.checkpoint().await?;
    let mut connections = Vec::new();
    for _ in 0..connection_count {
        connections.push(services.connect(&database).await?);
    }
    let started_at = Instant::now();
    let batches_by_connection = batches.chunks(batches.len().div_ceil(connection_count));
    let copies = connections
        .iter_mut()
        .zip(batches_by_connection)
        .map(|(connection, batches)| rows::copy_batches(connection, batches));
    futures::future::try_join_all(copies).await?;
    let rate = (batches.len() * BATCH_SIZE) as f64 / started_at.elapsed().as_secs_f64();
    for connection in connections {
        connection.close().await?;
    }
    services.drop_database(&database).await?;
    Ok(rate)
}
