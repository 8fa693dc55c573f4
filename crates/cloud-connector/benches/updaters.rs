//! Measures the two tenant lookup jobs with a slow gateway.
//!
//! The gateway needs 20 ms per request. A job sends at most 64 concurrent requests, so it needs at
//! least rows × 20 ms ÷ 64. The measured value is the ratio of the job's time to this minimum time.
//! The job exceeds the minimum time, because it also claims rows and writes rows. The job
//! `inventory_refresh` also delivers messages to inventory's topic.
//!
//! Start this benchmark with `make bench-updaters`. `BENCH_ROWS=5000` makes the benchmark shorter.
//! It prints a table, writes target/bench/updaters.json, and exits with 1 if a performance goal is
//! missed.

mod support;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cloud_connector::config::Config;
use cloud_connector::runtime;
use domain::SystemClock;
use jobs::{LookupJob, RunOptions};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use support::report::{self, Goal, Measurement};
use support::{Services, env_vars, load_config, repository_root};

const DEFAULT_ROW_COUNT: u32 = 50_000;
const GATEWAY_LATENCY: Duration = Duration::from_millis(20);
const GATEWAY_MAX_CONCURRENCY: usize = 64;
/// Performance goal: maximum ratio of the job's time to the minimum time.
const MAX_TIME_RATIO: f64 = 1.25;
const RESULT_FILE: &str = "target/bench/updaters.json";
/// Timeout of each request to Kafka.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(10);
/// The organization that the gateway returns for every client.
const ORG_ID: &str = "1";
/// The account number that the gateway returns for every client.
const ACCOUNT: &str = "42";

fn main() -> ExitCode {
    match run_jobs() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-updaters: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures both jobs. Returns whether all performance goals are met.
#[expect(
    clippy::disallowed_methods,
    reason = "a benchmark has no configuration"
)]
fn run_jobs() -> Result<bool> {
    let row_count = match std::env::var("BENCH_ROWS") {
        Ok(row_count) => row_count.parse().context("BENCH_ROWS is not a number")?,
        Err(_) => DEFAULT_ROW_COUNT,
    };
    ensure!(row_count > 0, "BENCH_ROWS must be greater than 0");
    // Metrics are enabled as in production, because they use CPU time.
    service::metrics::prometheus_handle();
    let services = Services::from_env_file()?;
    // The connector uses the same kind of runtime.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let measurements = runtime.block_on(async {
        let tenantless = measure_job(&services, LookupJob::Tenantless, row_count).await?;
        let inventory_refresh =
            measure_job(&services, LookupJob::InventoryRefresh, row_count).await?;
        Ok::<_, anyhow::Error>([tenantless, inventory_refresh])
    })?;
    println!(
        "gateway latency {} ms, at most {GATEWAY_MAX_CONCURRENCY} concurrent requests",
        GATEWAY_LATENCY.as_millis()
    );
    report::print_table(&measurements);
    report::write_json(&measurements, &repository_root().join(RESULT_FILE))?;
    Ok(measurements.iter().all(Measurement::meets_goal))
}

/// Runs the job once with a new database. Measures the time from the first claim to the last write.
async fn measure_job(services: &Services, job: LookupJob, row_count: u32) -> Result<Measurement> {
    let gateway = FakeGateway::start()?;
    let database = services.create_database().await?;
    let config = job_config(services, job, &database, &gateway)?;
    let mut connection = services.connect(&database).await?;
    insert_due_rows(&mut connection, job, row_count).await?;
    if job == LookupJob::InventoryRefresh {
        kafka::create_topics(&config.kafka, &[&config.inventory.topic]).await?;
    }

    let repositories = runtime::open_store_for_cli(&config).await?;
    let tenant_lookup = runtime::tenant_lookup(&config)?;
    let clock = Arc::new(SystemClock);
    let lookup_job = runtime::tenant_lookup_job(
        &config,
        repositories.lookup_queue.clone(),
        tenant_lookup,
        None,
        clock,
    )?;
    let started_at = Instant::now();
    let summary = lookup_job.run(job, RunOptions::default(), &|_| {}).await?;
    let duration = started_at.elapsed();
    repositories.maintenance.close().await;

    // The measurement is valid only if the job has processed all rows.
    ensure!(
        summary.found_clients == u64::from(row_count) && !summary.is_failure(),
        "{}: {row_count} rows were due, but the result is: {summary}",
        job.name()
    );
    let request_count = gateway.request_count();
    ensure!(
        request_count == u64::from(row_count),
        "the gateway received {request_count} requests for {row_count} rows"
    );
    let max_concurrency = gateway.max_concurrency();
    ensure!(
        max_concurrency <= GATEWAY_MAX_CONCURRENCY,
        "the gateway received {max_concurrency} concurrent requests"
    );
    check_rows(&mut connection, job, row_count).await?;
    if job == LookupJob::InventoryRefresh {
        let message_count = count_inventory_messages(&config)?;
        ensure!(
            message_count == i64::from(row_count),
            "inventory's topic has {message_count} messages for {row_count} rows"
        );
    }
    connection.close().await?;
    services.drop_database(&database).await?;
    Ok(build_measurement(job, row_count, duration, max_concurrency))
}

fn build_measurement(
    job: LookupJob,
    row_count: u32,
    duration: Duration,
    max_concurrency: usize,
) -> Measurement {
    let seconds = duration.as_secs_f64();
    let min_seconds =
        f64::from(row_count) * GATEWAY_LATENCY.as_secs_f64() / GATEWAY_MAX_CONCURRENCY as f64;
    Measurement {
        name: job.name().to_owned(),
        details: format!(
            "{seconds:.2} s ÷ {min_seconds:.2} s for {row_count} rows; at most {max_concurrency} \
             concurrent requests"
        ),
        value: seconds / min_seconds,
        unit: "",
        goal: Goal::AtMost(MAX_TIME_RATIO),
    }
}

/// Inserts connections that are due for the job.
async fn insert_due_rows(
    connection: &mut PgConnection,
    job: LookupJob,
    row_count: u32,
) -> Result<()> {
    let (org_id, tenant_lookup_timestamp) = match job {
        LookupJob::Tenantless => ("", Some("epoch")),
        LookupJob::InventoryRefresh => (ORG_ID, None),
    };
    sqlx::query(
        "INSERT INTO connections (client_id, org_id, canonical_facts, dispatchers,
                                  tenant_lookup_timestamp)
         SELECT gen_random_uuid(), $1,
                jsonb_build_object('insights_id', gen_random_uuid(), 'fqdn', n || '.example.com'),
                '{\"rhc-worker-playbook\": {}}', $2::text::timestamptz
           FROM generate_series(1, $3) AS n",
    )
    .bind(org_id)
    .bind(tenant_lookup_timestamp)
    .bind(i32::try_from(row_count)?)
    .execute(&mut *connection)
    .await?;
    // Without this statement, autovacuum could start during the measurement.
    sqlx::query("VACUUM ANALYZE connections")
        .execute(&mut *connection)
        .await?;
    Ok(())
}

/// Checks that all rows have the gateway's tenant. Also checks that the job `inventory_refresh` has
/// set the column `stale_timestamp` to the current time, and that the job `tenantless` has not
/// changed this column.
async fn check_rows(connection: &mut PgConnection, job: LookupJob, row_count: u32) -> Result<()> {
    let is_reported_to_inventory = job == LookupJob::InventoryRefresh;
    let valid_rows: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM connections
          WHERE org_id = $1 AND account = $2 AND tenant_lookup_timestamp IS NULL
            AND (stale_timestamp > now() - interval '1 hour') = $3",
    )
    .bind(ORG_ID)
    .bind(ACCOUNT)
    .bind(is_reported_to_inventory)
    .fetch_one(connection)
    .await?;
    ensure!(
        valid_rows == i64::from(row_count),
        "{}: {valid_rows} of {row_count} rows have the expected values",
        job.name()
    );
    Ok(())
}

/// Returns the number of messages in inventory's topic.
fn count_inventory_messages(config: &Config) -> Result<i64> {
    let brokers = config.kafka.brokers.as_deref().unwrap_or_default();
    let topic = config.inventory.topic.as_str();
    let consumer: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), KAFKA_TIMEOUT)?;
    let mut count = 0;
    for topic in metadata.topics() {
        for partition in topic.partitions() {
            let (first_offset, next_offset) =
                consumer.fetch_watermarks(topic.name(), partition.id(), KAFKA_TIMEOUT)?;
            count += next_offset - first_offset;
        }
    }
    Ok(count)
}

fn job_config(
    services: &Services,
    job: LookupJob,
    database: &str,
    gateway: &FakeGateway,
) -> Result<Config> {
    let uses_inventory = job == LookupJob::InventoryRefresh;
    let mut env = services.postgres_env_vars(database);
    env.extend(env_vars(&[
        ("tenant.gateway_url", &gateway.url),
        (
            "tenant.gateway_max_concurrency",
            &GATEWAY_MAX_CONCURRENCY.to_string(),
        ),
        ("inventory.enabled", &uses_inventory.to_string()),
    ]));
    if uses_inventory {
        env.extend(env_vars(&[
            // `kafka.brokers` is valid only together with `mqtt.url`. The job does not use MQTT.
            ("mqtt.url", "mqtt://127.0.0.1:1883"),
            (
                "kafka.brokers",
                &format!("127.0.0.1:{}", services.kafka_port),
            ),
            ("kafka.replication", "1"),
            ("inventory.topic", database),
        ]));
    }
    load_config(env)
}

/// A gateway that returns the same tenant for every client after [`GATEWAY_LATENCY`].
///
/// The gateway shares the CPU with the measured job, so it does as little work as possible. It uses
/// one thread per connection instead of Tokio. Tokio's timers can be late by one millisecond, and
/// this delay would increase the measured time of the job.
struct FakeGateway {
    url: String,
    stats: Arc<GatewayStats>,
}

#[derive(Default)]
struct GatewayStats {
    request_count: AtomicU64,
    in_flight_count: AtomicUsize,
    max_in_flight_count: AtomicUsize,
}

impl FakeGateway {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}/lookup", listener.local_addr()?);
        let stats = Arc::new(GatewayStats::default());
        let server_stats = stats.clone();
        let response: Arc<[u8]> = gateway_response().into();
        // This thread runs until the process exits. The thread of a connection ends when the
        // connection closes.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (stats, response) = (server_stats.clone(), response.clone());
                std::thread::spawn(move || serve_connection(stream, &response, &stats));
            }
        });
        Ok(Self { url, stats })
    }

    fn request_count(&self) -> u64 {
        self.stats.request_count.load(Ordering::Relaxed)
    }

    fn max_concurrency(&self) -> usize {
        self.stats.max_in_flight_count.load(Ordering::Relaxed)
    }
}

/// Responds to the requests of one connection. Requests have no body and are not pipelined. A
/// request is complete when the received bytes end with an empty line.
fn serve_connection(mut stream: TcpStream, response: &[u8], stats: &GatewayStats) {
    let _ = stream.set_nodelay(true);
    let mut request = [0; 4096];
    let mut length = 0;
    while length < request.len() {
        match stream.read(&mut request[length..]) {
            Ok(bytes_read) if bytes_read > 0 => length += bytes_read,
            _ => return,
        }
        if !request[..length].ends_with(b"\r\n\r\n") {
            continue;
        }
        length = 0;
        stats.request_count.fetch_add(1, Ordering::Relaxed);
        let in_flight_count = stats.in_flight_count.fetch_add(1, Ordering::Relaxed) + 1;
        stats
            .max_in_flight_count
            .fetch_max(in_flight_count, Ordering::Relaxed);
        std::thread::sleep(GATEWAY_LATENCY);
        stats.in_flight_count.fetch_sub(1, Ordering::Relaxed);
        if stream.write_all(response).is_err() {
            return;
        }
    }
}

/// Returns a complete HTTP response. The body contains the tenant in the gateway's format.
fn gateway_response() -> Vec<u8> {
    let identity = json!({"identity": {"type": "System", "auth_type": "cert-auth",
        "account_number": ACCOUNT, "org_id": ORG_ID, "internal": {"org_id": ORG_ID},
        "system": {"cn": "bench", "cert_type": "system"}}});
    let body = json!({"x-rh-identity": BASE64_STANDARD.encode(identity.to_string())}).to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
