//! Lists of an organisation with a million connections, beside the same questions in SQL.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::load::Caller;
use super::support::Services;
use super::support::report::{Bar, Figure, median};
use super::{KEY, ORG, ROUNDS, rows, throughput};

const CLIENTS: usize = 1_000_000;
const MIDDLE: usize = CLIENTS / 2;
/// Requests of each kind in a round.
const REPEATED: usize = 7;

const COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent";

/// What is measured, ours or in SQL: in milliseconds, each time.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn median(&self) -> f64 {
        median(&self.0)
    }
}

struct World {
    caller: Caller,
    database: PgConnection,
}

impl World {
    async fn ask(&mut self, query: &str) -> Result<f64> {
        let request = format!(
            "GET /api/cloud-connector/v2/connections?{query} HTTP/1.1\r\nhost: localhost\r\n\
             x-rh-cloud-connector-client-id: bench\r\nx-rh-cloud-connector-psk: {KEY}\r\n\
             x-rh-cloud-connector-org-id: {ORG}\r\n\r\n"
        );
        let started = Instant::now();
        let body = self.caller.ask(request.as_bytes(), "200").await?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        ensure!(body.len() > 100, "{}", String::from_utf8_lossy(body));
        Ok(took)
    }

    async fn query(&mut self, sql: &str) -> Result<f64> {
        let started = Instant::now();
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
            .persistent(false)
            .fetch_all(&mut self.database)
            .await?;
        let took = started.elapsed().as_secs_f64() * 1e3;
        ensure!(!rows.is_empty(), "nothing was found: {sql}");
        Ok(took)
    }

    /// How often the tables were read from end to end so far.
    async fn scans(&mut self) -> Result<i64> {
        // The server tells a little later.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let row = sqlx::query(
            "SELECT COALESCE(sum(seq_scan), 0)::bigint AS scans FROM pg_stat_user_tables
              WHERE relname IN ('connections', 'connection_search')",
        )
        .fetch_one(&mut self.database)
        .await?;
        Ok(row.try_get("scans")?)
    }
}

pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let database = services.database().await?;
    println!("making {CLIENTS} connections");
    rows::make(services, &database, CLIENTS).await?;
    services.settle().await?;
    let ours = throughput::api(services, &database).await?;
    let mut world = World {
        caller: Caller::connect(&ours.http).await?,
        database: services.connect(&database).await?,
    };
    let mut figures = pages(&mut world).await?;
    figures.extend(filters(&mut world).await?);
    drop(world);
    ours.stop().await?;
    services.drop_database(&database).await?;
    Ok(figures)
}

async fn pages(world: &mut World) -> Result<Vec<Figure>> {
    let count = format!("SELECT count(*) FROM connections WHERE org_id = '{ORG}'");
    let page = format!(
        "SELECT {COLUMNS} FROM connections WHERE org_id = '{ORG}' ORDER BY client_id LIMIT 100"
    );
    let first = "limit=100";
    let uncounted = "limit=100&cursor=";
    let after = format!("limit=100&cursor={}", rows::name(MIDDLE));
    let offset = format!("limit=100&offset={MIDDLE}");
    let [mut of_first, mut of_uncounted, mut of_after, mut of_offset] =
        [(); 4].map(|()| Times::default());
    let (mut of_count, mut of_page) = (Times::default(), Times::default());
    for round in 0..=ROUNDS {
        for _ in 0..REPEATED {
            let times = [
                (&mut of_first, world.ask(first).await?),
                (&mut of_count, world.query(&count).await?),
                (&mut of_uncounted, world.ask(uncounted).await?),
                (&mut of_page, world.query(&page).await?),
                (&mut of_after, world.ask(&after).await?),
                (&mut of_offset, world.ask(&offset).await?),
            ];
            // The first round fills caches.
            for (times, took) in times {
                if round > 0 {
                    times.0.push(took);
                }
            }
        }
    }
    let [first, uncounted, after, offset] =
        [of_first, of_uncounted, of_after, of_offset].map(|times| times.median());
    let (count, page) = (of_count.median(), of_page.median());
    Ok(vec![
        Figure {
            name: "first page of 100 with count".to_owned(),
            measured: format!("{first:.1} ms ÷ ({count:.1} + {page:.1} ms in SQL)"),
            value: first / (count + page),
            unit: "",
            bar: Bar::AtMost(1.2),
        },
        Figure {
            name: "page in the middle by cursor".to_owned(),
            measured: format!("{after:.1} ms ÷ {uncounted:.1} ms of the first without count"),
            value: after / uncounted,
            unit: "",
            bar: Bar::AtMost(1.5),
        },
        Figure {
            name: "page in the middle by offset".to_owned(),
            measured: format!("{offset:.1} ms ÷ {count:.1} ms to count in SQL"),
            value: offset / count,
            unit: "",
            bar: Bar::AtMost(1.0),
        },
    ])
}

/// Each with its count and first page, as ours is asked and as it stands in SQL.
async fn filters(world: &mut World) -> Result<Vec<Figure>> {
    let questions = [
        (
            "dispatcher of a tenth",
            "dispatcher=rhc_worker_playbook",
            "dispatcher:rhc-worker-playbook",
        ),
        (
            "dispatcher of a thousandth",
            "dispatcher=rare-worker",
            "dispatcher:rare-worker",
        ),
        (
            "tag of a two-hundredth",
            "tag=site:dc7",
            "tag:site\u{1f}dc7",
        ),
        (
            "fact of one",
            "fqdn=Host777.example.com",
            "fact:fqdn\u{1f}host777.example.com",
        ),
    ];
    let mut figures = Vec::new();
    let mut scans = 0;
    for (name, query, word) in questions {
        let found = format!(
            "FROM connections WHERE org_id = '{ORG}' AND client_id IN (SELECT f.client_id
               FROM connection_search AS f WHERE f.terms @> ARRAY[hashtextextended('{ORG}' || chr(31) || '{word}', 0)])"
        );
        let sql = format!(
            "SELECT total.count, page.* FROM (SELECT count(*) AS count {found}) AS total
               LEFT JOIN (SELECT {COLUMNS} {found} ORDER BY client_id LIMIT 100) AS page ON true
              ORDER BY page.client_id"
        );
        let (mut ours, mut bare) = (Times::default(), Times::default());
        let before = world.scans().await?;
        for round in 0..=ROUNDS {
            let took = (
                world.ask(&format!("limit=100&{query}")).await?,
                world.query(&sql).await?,
            );
            if round > 0 {
                ours.0.push(took.0);
                bare.0.push(took.1);
            }
        }
        scans += world.scans().await? - before;
        let (ours, bare) = (ours.median(), bare.median());
        figures.push(Figure {
            name: format!("filter by {name}"),
            measured: format!("{ours:.1} ms ÷ {bare:.1} ms in SQL"),
            value: ours / bare,
            unit: "",
            bar: Bar::AtMost(1.2),
        });
    }
    figures.push(Figure {
        name: "filters, tables read from end to end".to_owned(),
        measured: "connections and connection_search, by PostgreSQL's own count".to_owned(),
        value: scans as f64,
        unit: "times",
        bar: Bar::AtMost(0.0),
    });
    Ok(figures)
}
