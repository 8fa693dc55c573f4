//! The whole way from the queue to the table, beside COPY of the same rows; and what a backlog costs
//! in memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use sqlx::Connection as _;

use super::ROUNDS;
use super::process::{Process, eventually};
use super::queue;
use super::rows::{self, BATCH};
use super::support::report::{Bar, Figure, median};
use super::support::{Services, config, variables};

const BACKLOG: usize = 200_000;
/// `BENCH_BACKLOG=20000` makes it shorter, for a trial.
pub fn backlog() -> Result<usize> {
    match std::env::var("BENCH_BACKLOG") {
        Ok(count) => count.parse().context("BENCH_BACKLOG is not a number"),
        Err(_) => Ok(BACKLOG),
    }
}

/// Of either role, in MiB: 150 MB.
pub const MEMORY_MOST: f64 = 143.0;

/// RecorderConfig of everything that shares a set of topics.
pub fn settings(services: &Services, own: &str) -> Vec<(String, String)> {
    variables(&[
        (
            "mqtt.url",
            &format!("mqtt://127.0.0.1:{}", services.mosquitto),
        ),
        ("mqtt.username", "cloud-connector"),
        ("mqtt.password", "cc-secret"),
        ("mqtt.client_id", &format!("ingest-{own}")),
        ("kafka.brokers", &format!("127.0.0.1:{}", services.kafka)),
        ("kafka.ingress_topic", &format!("ingress-{own}")),
        ("kafka.answers_topic", &format!("answers-{own}")),
        ("kafka.replication", "1"),
        ("inventory.topic", &format!("inventory-{own}")),
        ("http.listen", "127.0.0.1:0"),
    ])
}

pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let own = uuid::Uuid::new_v4().simple().to_string();
    let shared = settings(services, &own);
    let config_of_all = config(shared.clone())?;
    let backlog = backlog()?;
    queue::make(&config_of_all).await?;
    let clients = rows::clients(backlog);
    queue::fill(&config_of_all, &clients).await?;
    let text = rows::as_text(&rows::arrivals(&clients, 0));

    let (mut recorded, mut copied, mut memory) = (vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let one = record(services, &shared, &format!("{own}-{round}"), backlog).await?;
        recorded.push(one.rate);
        memory.push(one.memory);
        copied.push(copy(services, &text).await?);
    }
    // Twice the backlog: more messages in the same topics.
    queue::fill(&config_of_all, &rows::clients(backlog)).await?;
    let twice = record(services, &shared, &format!("{own}-twice"), 2 * backlog).await?;

    let (recorded, copied) = (median(&recorded), median(&copied));
    Ok(vec![
        Figure {
            name: "queue to table".to_owned(),
            measured: format!("{recorded:.0} rows/s ÷ {copied:.0} by COPY on one connection"),
            value: recorded / copied,
            unit: "",
            bar: Bar::AtLeast(0.45),
        },
        Figure::memory("record, backlog of 200,000", median(&memory), MEMORY_MOST),
        Figure::memory("record, backlog of 400,000", twice.memory, MEMORY_MOST),
    ])
}

struct Recorded {
    rate: f64,
    memory: f64,
}

/// A `record` of a group of its own works off the whole backlog, into a database of its own.
async fn record(
    services: &Services,
    shared: &[(String, String)],
    group: &str,
    backlog: usize,
) -> Result<Recorded> {
    let database = services.database().await?;
    services.settle().await?;
    let mut settings = shared.to_vec();
    settings.extend(services.postgres_settings(&database));
    settings.extend(variables(&[
        ("kafka.group", &format!("group-{group}")),
        ("kafka.answers_group", &format!("answers-{group}")),
    ]));
    let mut connection = services.connect(&database).await?;
    let process = Process::start(&["--role", "record"], &settings).await?;
    // From the first rows on: how long a group takes to form is Kafka's to say.
    let mut began: Option<(Instant, i64)> = None;
    let wanted = i64::try_from(backlog)?;
    let rate = loop {
        let found: i64 = sqlx::query_scalar("SELECT count(*) FROM connections")
            .fetch_one(&mut connection)
            .await?;
        match began {
            None if found > 0 => began = Some((Instant::now(), found)),
            Some((at, before)) if found >= wanted => {
                break (found - before) as f64 / at.elapsed().as_secs_f64();
            }
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let memory = process.most_memory()?;
    let told: i64 =
        sqlx::query_scalar("SELECT count(*) FROM connections WHERE stale_timestamp > 'epoch'")
            .fetch_one(&mut connection)
            .await?;
    ensure!(told == wanted, "inventory heard of {told} of {wanted}");
    process.kill().await?;
    connection.close().await?;
    // The killed one's connections end a moment later.
    eventually("the database", Duration::from_millis(50), || async {
        Ok(services.drop_database(&database).await.ok())
    })
    .await?;
    Ok(Recorded { rate, memory })
}

async fn copy(services: &Services, text: &[Vec<u8>]) -> Result<f64> {
    let database = services.database().await?;
    services.settle().await?;
    let mut connection = services.connect(&database).await?;
    let rate = rows::copy(&mut connection, text, text.len() * BATCH).await?;
    connection.close().await?;
    services.drop_database(&database).await?;
    Ok(rate)
}
