//! How close the updaters that look tenants up come to what the gateway allows.
//!
//! The gateway takes 20 ms for an answer and is asked 64 times at once, so that rows × 20 ms ÷ 64 is
//! the least time in which anybody could be done. The bar is what may be lost beside it: claims,
//! writes, and, for the stale, the delivery to inventory's topic.
//!
//! Wants PostgreSQL and Kafka as `dev/with-services` runs them. Prints a table, writes
//! target/bench/updaters.json, and exits with 1 when a bar is missed. `BENCH_ROWS=5000` makes it
//! shorter.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use cloud_connector::config::{Config, Overrides, load_with};
use cloud_connector::domain::SystemClock;
use cloud_connector::updaters::{Request, Which};
use cloud_connector::{kafka, runtime, telemetry};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use serde_json::{Value, json};
use sqlx::Connection as _;

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
        let tenantless = measure(&services, Which::Tenantless, rows).await?;
        let stale = measure(&services, Which::Stale, rows).await?;
        Ok::<_, anyhow::Error>([tenantless, stale])
    })?;
    show(&measured);
    write(&measured)?;
    Ok(measured.iter().all(Measured::is_within))
}

struct Measured {
    which: Which,
    rows: u32,
    took: Duration,
    /// Most questions that the gateway had before it at once.
    at_once: usize,
}

impl Measured {
    fn ideal(&self) -> f64 {
        f64::from(self.rows) * ANSWER_AFTER.as_secs_f64() / AT_ONCE as f64
    }

    fn ratio(&self) -> f64 {
        self.took.as_secs_f64() / self.ideal()
    }

    fn is_within(&self) -> bool {
        self.ratio() <= BAR
    }

    fn verdict(&self) -> &'static str {
        if self.is_within() { "ok" } else { "MISSED" }
    }
}

fn show(measured: &[Measured]) {
    println!(
        "a gateway that takes {} ms for an answer, asked {AT_ONCE} times at once",
        ANSWER_AFTER.as_millis()
    );
    println!(
        "  {:<11} {:>7} {:>9} {:>11} {:>6} {:>5}",
        "updater", "rows", "ideal s", "measured s", "ratio", "bar"
    );
    for one in measured {
        println!(
            "  {:<11} {:>7} {:>9.2} {:>11.2} {:>6.3} {BAR:>5.2}  {}",
            one.which.name(),
            one.rows,
            one.ideal(),
            one.took.as_secs_f64(),
            one.ratio(),
            one.verdict()
        );
    }
}

fn write(measured: &[Measured]) -> Result<()> {
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let of_each: serde_json::Map<String, Value> = measured
        .iter()
        .map(|one| {
            let figures = json!({
                "rows": one.rows,
                "ideal_s": rounded(one.ideal()),
                "measured_s": rounded(one.took.as_secs_f64()),
                "ratio": rounded(one.ratio()),
                "bar": BAR,
                "verdict": one.verdict(),
                "most_at_once": one.at_once,
            });
            (one.which.name().to_owned(), figures)
        })
        .collect();
    let file = root().join(RESULT);
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(&of_each)? + "\n";
    std::fs::write(&file, text).with_context(|| file.display().to_string())
}

/// One run over a database of its own, from the first claim to the last write.
async fn measure(services: &Services, which: Which, rows: u32) -> Result<Measured> {
    let name = format!("bench_{}", uuid::Uuid::new_v4().simple());
    let gateway = Gateway::start()?;
    let config = services.config(which, &name, &gateway)?;
    services.create_database(&name).await?;
    runtime::migrate(&config).await?;
    let mut database = sqlx::PgConnection::connect(&services.database_url(&name)).await?;
    fill(&mut database, which, rows).await?;
    if which == Which::Stale {
        kafka::create_topics(&config.kafka, &[&config.inventory.topic]).await?;
    }

    let store = runtime::open_for_operator(&config).await?;
    let tenants = runtime::tenants(&config)?;
    let clock = Arc::new(SystemClock);
    let updater = runtime::lookup_updater(&config, store.clone(), tenants, None, clock)?;
    let started = Instant::now();
    let summary = updater.run(which, Request::default(), &|_| {}).await?;
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
    if which == Which::Stale {
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

async fn fill(database: &mut sqlx::PgConnection, which: Which, rows: u32) -> Result<()> {
    let (org, looked_up) = match which {
        Which::Tenantless => ("", Some("epoch")),
        Which::Stale => ("1", None),
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

async fn check_rows(database: &mut sqlx::PgConnection, which: Which, rows: u32) -> Result<()> {
    let told = which == Which::Stale;
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

/// What `dev/with-services` runs.
struct Services {
    postgres: u16,
    kafka: u16,
}

impl Services {
    fn read() -> Result<Self> {
        let file = root().join("target/services/env");
        let text = std::fs::read_to_string(&file).with_context(|| {
            format!(
                "{} is missing; `make bench-updaters` starts the services",
                file.display()
            )
        })?;
        let port = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
                .with_context(|| format!("no {name} in {}", file.display()))
        };
        Ok(Self {
            postgres: port("POSTGRES_PORT")?,
            kafka: port("KAFKA_PORT")?,
        })
    }

    fn config(&self, which: Which, name: &str, gateway: &Gateway) -> Result<Config> {
        let is_stale = which == Which::Stale;
        let mut settings = vec![
            ("POSTGRES__HOST", "127.0.0.1".to_owned()),
            ("POSTGRES__PORT", self.postgres.to_string()),
            ("POSTGRES__DATABASE", name.to_owned()),
            ("POSTGRES__USER", "cc".to_owned()),
            ("POSTGRES__PASSWORD", "cc-secret".to_owned()),
            ("POSTGRES__TLS", "disable".to_owned()),
            ("TENANT__GATEWAY_URL", gateway.url.clone()),
            ("TENANT__GATEWAY_AT_ONCE", AT_ONCE.to_string()),
            ("INVENTORY__ENABLED", is_stale.to_string()),
        ];
        if is_stale {
            // Nobody connects to it; but a queue is only allowed beside an outside broker.
            settings.push(("MQTT__URL", "mqtt://127.0.0.1:1883".to_owned()));
            settings.push(("KAFKA__BROKERS", format!("127.0.0.1:{}", self.kafka)));
            settings.push(("KAFKA__REPLICATION", "1".to_owned()));
            settings.push(("INVENTORY__TOPIC", name.to_owned()));
        }
        let settings = settings
            .into_iter()
            .map(|(key, value)| (format!("CLOUD_CONNECTOR__{key}"), value));
        Ok(load_with(&Overrides::default(), settings)?.config)
    }

    fn database_url(&self, name: &str) -> String {
        let port = self.postgres;
        format!("postgres://cc:cc-secret@127.0.0.1:{port}/{name}?sslmode=disable")
    }

    async fn create_database(&self, name: &str) -> Result<()> {
        self.command(format!("CREATE DATABASE {name}")).await
    }

    async fn drop_database(&self, name: &str) -> Result<()> {
        self.command(format!("DROP DATABASE {name}")).await
    }

    async fn command(&self, statement: String) -> Result<()> {
        let mut server = sqlx::PgConnection::connect(&self.database_url("cc")).await?;
        sqlx::query(sqlx::AssertSqlSafe(statement))
            .execute(&mut server)
            .await?;
        Ok(server.close().await?)
    }
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

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
