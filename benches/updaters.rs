//! How close the updaters that look tenants up come to what the gateway allows.
//!
//! The gateway takes 20 ms for an answer and is asked 64 times at once, so that rows × 20 ms ÷ 64 is
//! the least time in which anybody could be done. The bar is what may be lost beside it: claims,
//! writes, and, for the stale, the delivery to inventory's topic.
//!
//! Wants PostgreSQL and Kafka as `dev/with-services` runs them. Prints a table, writes
//! target/bench/updaters.json, and exits with 1 when a bar is missed. `BENCH_ROWS=5000` makes it
//! shorter.

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
use cloud_connector::domain::SystemClock;
use cloud_connector::jobs::{LookupJob, RunOptions};
use cloud_connector::{kafka, runtime, telemetry};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::json;
use sqlx::Connection as _;
use support::report::{self, Bar, Figure};
use support::{Services, root};

const ROWS: u32 = 50_000;
const ANSWER_AFTER: Duration = Duration::from_millis(20);
const AT_ONCE: usize = 64;
/// Measured ÷ ideal, at most.
const BAR: f64 = 1.25;
const RESULT: &str = "target/bench/updaters.json";
const KAFKA_WITHIN: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench-updaters: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let rows = match std::env::var("BENCH_ROWS") {
        Ok(rows) => rows.parse().context("BENCH_ROWS is not a number")?,
        Err(_) => ROWS,
    };
    ensure!(rows > 0, "BENCH_ROWS is 0: there is nothing to measure");
    // As where it is deployed: metrics are counted, and warnings are printed.
    telemetry::metrics::handle();
    let services = Services::read()?;
    // The same runtime as the program's.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let measured = runtime.block_on(async {
        let tenantless = measure(&services, LookupJob::Tenantless, rows).await?;
        let stale = measure(&services, LookupJob::InventoryRefresh, rows).await?;
        Ok::<_, anyhow::Error>([tenantless, stale])
    })?;
    let figures = measured.map(|one| one.figure());
    println!(
        "a gateway that takes {} ms for an answer, asked {AT_ONCE} times at once",
        ANSWER_AFTER.as_millis()
    );
    report::show(&figures);
    report::write(&figures, &root().join(RESULT))?;
    Ok(figures.iter().all(Figure::is_met))
}

struct Measured {
    which: LookupJob,
    rows: u32,
    took: Duration,
    /// Most questions that the gateway had before it at once.
    at_once: usize,
}

impl Measured {
    fn figure(&self) -> Figure {
        let ideal = f64::from(self.rows) * ANSWER_AFTER.as_secs_f64() / AT_ONCE as f64;
        let took = self.took.as_secs_f64();
        Figure {
            name: self.which.name().to_owned(),
            measured: format!(
                "{took:.2} s ÷ {ideal:.2} s for {} rows; {} asked at once",
                self.rows, self.at_once
            ),
            value: took / ideal,
            unit: "",
            bar: Bar::AtMost(BAR),
        }
    }
}

/// One run over a database of its own, from the first claim to the last write.
async fn measure(services: &Services, which: LookupJob, rows: u32) -> Result<Measured> {
    let gateway = Gateway::start()?;
    let name = services.database().await?;
    let config = settings(services, which, &name, &gateway)?;
    let mut database = services.connect(&name).await?;
    fill(&mut database, which, rows).await?;
    if which == LookupJob::InventoryRefresh {
        kafka::create_topics(&config.kafka, &[&config.inventory.topic]).await?;
    }

    let store = runtime::open_for_cli(&config).await?;
    let tenants = runtime::tenant_lookup(&config)?;
    let clock = Arc::new(SystemClock);
    let updater = runtime::tenant_lookup_job(&config, store.clone(), tenants, None, clock)?;
    let started = Instant::now();
    let summary = updater.run(which, RunOptions::default(), &|_| {}).await?;
    let took = started.elapsed();
    store.close().await;

    // What was not done was not measured.
    let wanted = u64::from(rows);
    ensure!(
        summary.found == wanted && !summary.is_failure(),
        "{}: {rows} rows were due, but {summary}",
        which.name()
    );
    let asked = gateway.asked();
    ensure!(
        asked == wanted,
        "the gateway was asked {asked} times for {rows} rows"
    );
    let at_once = gateway.most_at_once();
    ensure!(
        at_once <= AT_ONCE,
        "the gateway was asked {at_once} times at once"
    );
    check_rows(&mut database, which, rows).await?;
    if which == LookupJob::InventoryRefresh {
        let told = count_messages(&config)?;
        ensure!(
            told == i64::from(rows),
            "inventory's topic holds {told} messages for {rows} rows"
        );
    }
    database.close().await?;
    services.drop_database(&name).await?;
    Ok(Measured {
        which,
        rows,
        took,
        at_once,
    })
}

async fn fill(database: &mut sqlx::PgConnection, which: LookupJob, rows: u32) -> Result<()> {
    let (org, looked_up) = match which {
        LookupJob::Tenantless => ("", Some("epoch")),
        LookupJob::InventoryRefresh => ("1", None),
    };
    sqlx::query(
        "INSERT INTO connections (client_id, org_id, canonical_facts, dispatchers,
                                  tenant_lookup_timestamp)
         SELECT gen_random_uuid(), $1,
                jsonb_build_object('insights_id', gen_random_uuid(), 'fqdn', n || '.example.com'),
                '{\"rhc-worker-playbook\": {}}', $2::text::timestamptz
           FROM generate_series(1, $3) AS n",
    )
    .bind(org)
    .bind(looked_up)
    .bind(i32::try_from(rows)?)
    .execute(&mut *database)
    .await?;
    // Autovacuum would do it sooner or later; here it would be in the middle of the measurement.
    sqlx::query("VACUUM ANALYZE connections")
        .execute(&mut *database)
        .await?;
    Ok(())
}

async fn check_rows(database: &mut sqlx::PgConnection, which: LookupJob, rows: u32) -> Result<()> {
    let told = which == LookupJob::InventoryRefresh;
    let done: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM connections
          WHERE org_id = '1' AND account = '42' AND tenant_lookup_timestamp IS NULL
            AND (stale_timestamp > now() - interval '1 hour') = $1",
    )
    .bind(told)
    .fetch_one(database)
    .await?;
    ensure!(
        done == i64::from(rows),
        "{}: {done} of {rows} rows are as they should be",
        which.name()
    );
    Ok(())
}

fn count_messages(config: &Config) -> Result<i64> {
    let brokers = config.kafka.brokers.as_deref().unwrap_or_default();
    let topic = config.inventory.topic.as_str();
    let consumer: BaseConsumer = rdkafka::ClientConfig::new()
        .set("bootstrap.servers", brokers)
        .create()?;
    let metadata = consumer.fetch_metadata(Some(topic), KAFKA_WITHIN)?;
    let mut count = 0;
    for topic in metadata.topics() {
        for partition in topic.partitions() {
            let (first, next) =
                consumer.fetch_watermarks(topic.name(), partition.id(), KAFKA_WITHIN)?;
            count += next - first;
        }
    }
    Ok(count)
}

fn settings(
    services: &Services,
    which: LookupJob,
    name: &str,
    gateway: &Gateway,
) -> Result<Config> {
    let is_stale = which == LookupJob::InventoryRefresh;
    let mut settings = services.postgres_settings(name);
    settings.extend(support::variables(&[
        ("tenant.gateway_url", &gateway.url),
        ("tenant.gateway_max_concurrency", &AT_ONCE.to_string()),
        ("inventory.enabled", &is_stale.to_string()),
    ]));
    if is_stale {
        settings.extend(support::variables(&[
            // Nobody connects to it; but a queue is only allowed beside an outside broker.
            ("mqtt.url", "mqtt://127.0.0.1:1883"),
            ("kafka.brokers", &format!("127.0.0.1:{}", services.kafka)),
            ("kafka.replication", "1"),
            ("inventory.topic", name),
        ]));
    }
    support::config(settings)
}

/// A gateway that says of everybody the same, and costs as little as can be: it shares the machine
/// with what is measured. A thread for each connection, because a sleeping thread wakes on time;
/// timers of a runtime are a millisecond late, which would be counted as the updater's.
struct Gateway {
    url: String,
    book: Arc<Book>,
}

#[derive(Default)]
struct Book {
    asked: AtomicU64,
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Gateway {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}/lookup", listener.local_addr()?);
        let book = Arc::new(Book::default());
        let kept = book.clone();
        let answer: Arc<[u8]> = answer().into();
        // Ends with the process; its connections end when the other side does.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (book, answer) = (kept.clone(), answer.clone());
                std::thread::spawn(move || book.serve(stream, &answer));
            }
        });
        Ok(Self { url, book })
    }

    fn asked(&self) -> u64 {
        self.book.asked.load(Ordering::Relaxed)
    }

    fn most_at_once(&self) -> usize {
        self.book.most.load(Ordering::Relaxed)
    }
}

impl Book {
    /// Questions have no body and are not sent before the answer to the last: each ends where what
    /// is there to read ends with an empty line.
    fn serve(&self, mut stream: TcpStream, answer: &[u8]) {
        let _ = stream.set_nodelay(true);
        let mut question = [0; 4096];
        let mut length = 0;
        while length < question.len() {
            match stream.read(&mut question[length..]) {
                Ok(read) if read > 0 => length += read,
                _ => return,
            }
            if !question[..length].ends_with(b"\r\n\r\n") {
                continue;
            }
            length = 0;
            self.asked.fetch_add(1, Ordering::Relaxed);
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            std::thread::sleep(ANSWER_AFTER);
            self.now.fetch_sub(1, Ordering::Relaxed);
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}

/// A whole HTTP answer: everybody belongs to the same organisation.
fn answer() -> Vec<u8> {
    let identity = json!({"identity": {"type": "System", "auth_type": "cert-auth",
        "account_number": "42", "org_id": "1", "internal": {"org_id": "1"},
        "system": {"cn": "bench", "cert_type": "system"}}});
    let body = json!({"x-rh-identity": BASE64_STANDARD.encode(identity.to_string())}).to_string();
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
