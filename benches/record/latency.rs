//! From a client's publish until the API shows it, at a steady rate, beside the barest way from a
//! publish over an INSERT to a SELECT.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use sqlx::{PgPool, SqlitePool};
use tokio::sync::Mutex;

use super::client::Client;
use super::embedded::Embedded;
use super::pipeline::settings;
use super::process::{Process, eventually, run};
use super::support::figures::{Bar, Figure, quantile};
use super::support::{Services, root, variables};
use super::{ROUNDS, rows};

/// A message every 10 ms, each of another client.
const EVERY: Duration = Duration::from_millis(10);
const CLIENTS: usize = 50;
const MESSAGES: usize = 400;
const KEY: &str = "0123456789abcdef0123";

pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let mut figures = embedded(services).await?;
    figures.extend(distributed(services).await?);
    Ok(figures)
}

async fn embedded(services: &Services) -> Result<Vec<Figure>> {
    let connector = Embedded::start().await?;
    let api = Api {
        http: reqwest::Client::new(),
        base: connector.process.http.clone(),
        caller: "local",
        key: connector.key.clone(),
    };
    let bare = Bare::sqlite(services).await?;
    let ours = Where::Ours(api, connector.process.mqtt.clone());
    compare("embedded", 10.0, ours, bare).await
}

async fn distributed(services: &Services) -> Result<Vec<Figure>> {
    let own = uuid::Uuid::new_v4().simple().to_string();
    let database = services.database().await?;
    let mut variables_of_all = settings(services, &own);
    variables_of_all.extend(services.postgres_settings(&database));
    variables_of_all.extend(variables(&[
        ("kafka.group", &format!("group-{own}")),
        ("kafka.answers_group", &format!("answers-{own}")),
        ("api.keys.bench", KEY),
    ]));
    run(&["migrate", "--topics"], &variables_of_all).await?;
    let mut processes = Vec::new();
    for role in ["ingest", "record", "api"] {
        processes.push(Process::start(&["--role", role], &variables_of_all).await?);
    }
    let http = reqwest::Client::new();
    for process in &processes {
        let ready = format!("{}/readiness", process.http);
        eventually("readiness", Duration::from_millis(50), || async {
            let answer = http.get(&ready).send().await?;
            Ok(answer.status().is_success().then_some(()))
        })
        .await?;
    }
    let api = Api {
        http,
        base: processes.last().context("api")?.http.clone(),
        caller: "bench",
        key: KEY.to_owned(),
    };
    let bare = Bare::postgres(services, &database).await?;
    let ours = Where::Ours(api, format!("127.0.0.1:{}", services.mosquitto));
    let figures = compare("distributed", 25.0, ours, bare).await?;
    for process in processes {
        process.kill().await?;
    }
    Ok(figures)
}

async fn compare(name: &str, most: f64, ours: Where, bare: Bare) -> Result<Vec<Figure>> {
    let bare = Where::Bare(bare);
    let (mut of_ours, mut of_bare) = (vec![], vec![]);
    for round in 0..ROUNDS {
        of_ours.extend(sample(&ours, round).await?);
        of_bare.extend(sample(&bare, round).await?);
    }
    let (p50, p99) = (quantile(&of_ours, 0.5), quantile(&of_ours, 0.99));
    let (bare_p50, bare_p99) = (quantile(&of_bare, 0.5), quantile(&of_bare, 0.99));
    Ok(vec![
        Figure {
            name: format!("{name}, publish to API, p50"),
            measured: format!("at 100 messages/s; bare loop {bare_p50:.1} ms"),
            value: p50,
            unit: "ms",
            bar: Bar::AtMost(most),
        },
        Figure {
            name: format!("{name}, publish to API, p99"),
            measured: format!("{p99:.1} ms ÷ {bare_p99:.1} ms of the bare loop"),
            value: p99 / bare_p99,
            unit: "",
            bar: Bar::AtMost(3.0),
        },
    ])
}

enum Where {
    Ours(Api, String),
    Bare(Bare),
}

impl Where {
    fn mqtt(&self) -> &str {
        match self {
            Self::Ours(_, address) => address,
            Self::Bare(bare) => &bare.mqtt,
        }
    }

    async fn shows(&self, client: &str, round: &str) -> Result<bool> {
        match self {
            Self::Ours(api, _) => api.shows(client, round).await,
            Self::Bare(bare) => bare.database.shows(client, round).await,
        }
    }
}

/// Milliseconds from each publish until it is shown.
async fn sample(to: &Where, round: usize) -> Result<Vec<f64>> {
    let mut clients = Vec::new();
    for name in rows::clients(CLIENTS) {
        let client = Client::connect(to.mqtt(), &name).await?;
        clients.push((name, Mutex::new(client)));
    }
    let begin = tokio::time::Instant::now();
    let samples = (0..MESSAGES).map(|n| {
        let (name, client) = &clients[n % CLIENTS];
        async move {
            let at = begin + EVERY * u32::try_from(n)?;
            tokio::time::sleep_until(at).await;
            let round = round * MESSAGES + n;
            let payload = rows::message(name, round);
            let round = round.to_string();
            let mut client = client.lock().await;
            let started = Instant::now();
            client
                .send(u16::try_from(n)? + 1, payload.as_bytes())
                .await?;
            while !to.shows(name, &round).await? {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            let took = started.elapsed().as_secs_f64() * 1000.0;
            client.acknowledged().await?;
            Ok::<_, anyhow::Error>(took)
        }
    });
    futures::future::try_join_all(samples).await
}

struct Api {
    http: reqwest::Client,
    base: String,
    caller: &'static str,
    key: String,
}

impl Api {
    async fn shows(&self, client: &str, round: &str) -> Result<bool> {
        let url = format!(
            "{}/api/cloud-connector/v2/connections/{client}/status",
            self.base
        );
        let answer = self
            .http
            .get(url)
            .header("x-rh-cloud-connector-client-id", self.caller)
            .header("x-rh-cloud-connector-psk", &self.key)
            .header("x-rh-cloud-connector-org-id", "10000")
            .send()
            .await?;
        let status: serde_json::Value = answer.json().await?;
        Ok(status["tags"]["round"] == round)
    }
}

/// Mosquitto, a subscriber, a table of two columns.
struct Bare {
    mqtt: String,
    database: Arc<Database>,
    subscriber: tokio::task::JoinHandle<()>,
}

impl Drop for Bare {
    fn drop(&mut self) {
        self.subscriber.abort();
    }
}

impl Bare {
    async fn sqlite(services: &Services) -> Result<Self> {
        let folder = root().join("target/bench");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join(format!("{}.db", uuid::Uuid::new_v4().simple()));
        let url = format!("sqlite://{}?mode=rwc", file.display());
        let pool = SqlitePool::connect(&url).await?;
        sqlx::query("PRAGMA journal_mode = WAL")
            .execute(&pool)
            .await?;
        sqlx::query("PRAGMA synchronous = FULL")
            .execute(&pool)
            .await?;
        Self::start(services, Database::Sqlite(pool, file)).await
    }

    async fn postgres(services: &Services, database: &str) -> Result<Self> {
        let pool = PgPool::connect(&services.database_url(database)).await?;
        Self::start(services, Database::Postgres(pool)).await
    }

    async fn start(services: &Services, database: Database) -> Result<Self> {
        let database = Arc::new(database);
        database.make().await?;
        let mqtt = format!("127.0.0.1:{}", services.mosquitto);
        let mut subscriber = Client::subscribe(&mqtt, "redhat/insights/+/control/out").await?;
        let into = database.clone();
        let subscriber = tokio::spawn(async move {
            while let Ok((topic, payload)) = subscriber.message().await {
                let client = topic.split('/').nth(2).unwrap_or_default().to_owned();
                let message: serde_json::Value =
                    serde_json::from_slice(&payload).unwrap_or_default();
                let round = message["content"]["tags"]["round"].as_str();
                let _ = into.insert(&client, round.unwrap_or_default()).await;
            }
        });
        Ok(Self {
            mqtt,
            database,
            subscriber,
        })
    }
}

enum Database {
    Sqlite(SqlitePool, std::path::PathBuf),
    Postgres(PgPool),
}

impl Drop for Database {
    fn drop(&mut self) {
        if let Self::Sqlite(_, file) = self {
            for ending in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(format!("{}{ending}", file.display()));
            }
        }
    }
}

impl Database {
    async fn make(&self) -> Result<()> {
        let sql = "CREATE TABLE bare (client text, round text, PRIMARY KEY (client, round))";
        match self {
            Self::Sqlite(pool, _) => sqlx::query(sql).execute(pool).await.map(|_| ())?,
            Self::Postgres(pool) => sqlx::query(sql).execute(pool).await.map(|_| ())?,
        }
        Ok(())
    }

    async fn insert(&self, client: &str, round: &str) -> Result<()> {
        let sql = "INSERT INTO bare (client, round) VALUES ($1, $2)";
        match self {
            Self::Sqlite(pool, _) => {
                let insert = sqlx::query(sql).bind(client).bind(round);
                insert.execute(pool).await?;
            }
            Self::Postgres(pool) => {
                let insert = sqlx::query(sql).bind(client).bind(round);
                insert.execute(pool).await?;
            }
        }
        Ok(())
    }

    async fn shows(&self, client: &str, round: &str) -> Result<bool> {
        let sql = "SELECT count(*) FROM bare WHERE client = $1 AND round = $2";
        let count: i64 = match self {
            Self::Sqlite(pool, _) => {
                let select = sqlx::query_scalar(sql).bind(client).bind(round);
                select.fetch_one(pool).await?
            }
            Self::Postgres(pool) => {
                let select = sqlx::query_scalar(sql).bind(client).bind(round);
                select.fetch_one(pool).await?
            }
        };
        Ok(count > 0)
    }
}
