//! Measures how fast the role `record` writes a backlog from Kafka to PostgreSQL. The baseline is
//! COPY of the same rows. Also measures the peak memory of `record`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use sqlx::Connection as _;

use super::process::{ConnectorProcess, eventually};
use super::support::report::{Goal, Measurement, median};
use super::support::{Services, env_vars, load_config};
use super::{RUN_COUNT, kafka_topics, rows};

/// Default number of messages in the backlog.
const DEFAULT_BACKLOG_SIZE: usize = 200_000;
/// Performance goal: maximum peak memory of the roles `record` and `ingest`. 143 MiB are 150 MB.
pub const MAX_PEAK_MEMORY_MIB: f64 = 143.0;
/// Time between two polls for the number of written rows.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the number of messages in the backlog. `BENCH_BACKLOG=20000` makes a trial run shorter,
/// but the names of the measurements still contain the default number.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark has no configuration"
)]
pub fn backlog_size() -> Result<usize> {
    match std::env::var("BENCH_BACKLOG") {
        Ok(count) => count.parse().context("BENCH_BACKLOG is not a number"),
        Err(_) => Ok(DEFAULT_BACKLOG_SIZE),
    }
}

/// Returns environment variables for distributed mode, but without the variables of the database.
/// `suffix` makes the Kafka topics and the MQTT client id unique.
pub fn distributed_env_vars(services: &Services, suffix: &str) -> Vec<(String, String)> {
    env_vars(&[
        (
            "mqtt.url",
            &format!("mqtt://127.0.0.1:{}", services.mosquitto_port),
        ),
        ("mqtt.username", "cloud-connector"),
        ("mqtt.password", "cc-secret"),
        ("mqtt.client_id", &format!("ingest-{suffix}")),
        (
            "kafka.brokers",
            &format!("127.0.0.1:{}", services.kafka_port),
        ),
        ("kafka.ingress_topic", &format!("ingress-{suffix}")),
        ("kafka.answers_topic", &format!("answers-{suffix}")),
        ("kafka.slow_topic", &format!("slow-{suffix}")),
        ("kafka.slow_group", &format!("slow-{suffix}")),
        ("kafka.replication", "1"),
        ("inventory.topic", &format!("inventory-{suffix}")),
        ("http.listen", "127.0.0.1:0"),
        // Few clients send all messages, so no budget may limit them.
        ("client_budget.messages_per_second", "1000000000"),
        ("client_budget.message_burst", "1000000000"),
        ("client_budget.bytes_per_second", "1000000000"),
        ("client_budget.byte_burst", "1000000000"),
    ])
}

pub async fn measure_record_role(services: &Services) -> Result<Vec<Measurement>> {
    let suffix = uuid::Uuid::new_v4().simple().to_string();
    let env_vars = distributed_env_vars(services, &suffix);
    let config = load_config(env_vars.clone())?;
    let backlog = backlog_size()?;
    kafka_topics::create_topics(&config).await?;
    let client_ids = rows::random_client_ids(backlog);
    kafka_topics::fill_ingress_topic(&config, &client_ids).await?;
    let copy_input = rows::to_copy_input(&rows::upsert_batches(&client_ids, 0));

    let (mut record_rates, mut copy_rates, mut peak_memory_mib) = (vec![], vec![], vec![]);
    for run in 0..RUN_COUNT {
        let group_suffix = format!("{suffix}-{run}");
        let result = run_record_role(services, &env_vars, &group_suffix, backlog).await?;
        record_rates.push(result.rows_per_second);
        peak_memory_mib.push(result.peak_memory_mib);
        copy_rates.push(copy_rows(services, &copy_input).await?);
    }
    // Double the number of messages in the topic. A new consumer group reads the topic from the
    // start.
    kafka_topics::fill_ingress_topic(&config, &rows::random_client_ids(backlog)).await?;
    let group_suffix = format!("{suffix}-double");
    let double_backlog = run_record_role(services, &env_vars, &group_suffix, 2 * backlog).await?;

    let (record_rate, copy_rate) = (median(&record_rates), median(&copy_rates));
    Ok(vec![
        Measurement {
            name: "Kafka to table, 200,000 clients".to_owned(),
            details: format!("{record_rate:.0} rows/s ÷ {copy_rate:.0} by COPY without triggers"),
            value: record_rate / copy_rate,
            unit: "",
            goal: Goal::AtLeast(0.6),
        },
        Measurement::peak_memory(
            "record, peak memory, backlog of 200,000",
            median(&peak_memory_mib),
            MAX_PEAK_MEMORY_MIB,
        ),
        Measurement::peak_memory(
            "record, peak memory, backlog of 400,000",
            double_backlog.peak_memory_mib,
            MAX_PEAK_MEMORY_MIB,
        ),
    ])
}

/// Result of one run of the role `record`.
struct RecordResult {
    rows_per_second: f64,
    peak_memory_mib: f64,
}

/// Runs the role `record` with a new consumer group and an empty database. Stops the process when
/// all rows of the backlog are written.
async fn run_record_role(
    services: &Services,
    shared_env_vars: &[(String, String)],
    group_suffix: &str,
    backlog: usize,
) -> Result<RecordResult> {
    let database = services.create_database().await?;
    services.checkpoint().await?;
    let mut env = shared_env_vars.to_vec();
    env.extend(services.postgres_env_vars(&database));
    env.extend(env_vars(&[
        ("kafka.group", &format!("group-{group_suffix}")),
        ("kafka.answers_group", &format!("answers-{group_suffix}")),
    ]));
    let mut connection = services.connect(&database).await?;
    let process = ConnectorProcess::start(&["--role", "record"], &env).await?;
    // Time and row count of the first poll that found rows. The measurement starts at this time, so
    // that it does not include the time until Kafka assigns partitions to the new consumer group.
    let mut first_poll_with_rows: Option<(Instant, i64)> = None;
    let expected_rows = i64::try_from(backlog)?;
    let rows_per_second = loop {
        let row_count: i64 = sqlx::query_scalar("SELECT count(*) FROM connections")
            .fetch_one(&mut connection)
            .await?;
        match first_poll_with_rows {
            None if row_count > 0 => first_poll_with_rows = Some((Instant::now(), row_count)),
            Some((started_at, first_row_count)) if row_count >= expected_rows => {
                break (row_count - first_row_count) as f64 / started_at.elapsed().as_secs_f64();
            }
            _ => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    };
    let peak_memory_mib = process.peak_memory_mib()?;
    let reported_hosts = count_reported_hosts(&mut connection, expected_rows).await?;
    println!(
        "{reported_hosts} of {expected_rows} hosts were reported to inventory by the recorder"
    );
    ensure!(reported_hosts > 0, "no host was reported to inventory");
    process.kill().await?;
    connection.close().await?;
    // PostgreSQL closes the connections of the killed process with a delay, so the first attempts
    // may fail.
    let poll_interval = Duration::from_millis(50);
    eventually("DROP DATABASE", poll_interval, || async {
        Ok(services.drop_database(&database).await.ok())
    })
    .await?;
    Ok(RecordResult {
        rows_per_second,
        peak_memory_mib,
    })
}

/// Returns the number of hosts whose report to inventory is stored as delivered. The recorder stores
/// the last deliveries after the rows, so this function waits until the number no longer grows.
async fn count_reported_hosts(
    connection: &mut sqlx::PgConnection,
    expected_rows: i64,
) -> Result<i64> {
    const MAX_UNCHANGED_POLLS: u32 = 10;
    let (mut reported_hosts, mut unchanged_polls) = (-1, 0);
    while reported_hosts < expected_rows && unchanged_polls < MAX_UNCHANGED_POLLS {
        let count: i64 =
            sqlx::query_scalar("SELECT count(*) FROM connections WHERE stale_timestamp > 'epoch'")
                .fetch_one(&mut *connection)
                .await?;
        unchanged_polls = if count == reported_hosts {
            unchanged_polls + 1
        } else {
            0
        };
        reported_hosts = count;
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(reported_hosts)
}

/// Copies the rows into an empty database whose triggers are disabled. Returns the rows per second.
async fn copy_rows(services: &Services, copy_input: &[Vec<u8>]) -> Result<f64> {
    let database = services.create_database().await?;
    services.checkpoint().await?;
    let mut connection = services.connect(&database).await?;
    sqlx::query("ALTER TABLE connections DISABLE TRIGGER USER")
        .execute(&mut connection)
        .await?;
    let rate = rows::copy_batches(&mut connection, copy_input).await?;
    connection.close().await?;
    services.drop_database(&database).await?;
    Ok(rate)
}
