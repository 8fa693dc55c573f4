//! Writing batches, beside COPY of the same rows.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use cloud_connector::domain::Timestamp;
use cloud_connector::runtime;
use cloud_connector::store::{ConnectionUpsert, PresenceBatch, Store, WriteOutcome};
use sqlx::Connection as _;

use super::rows::{self, BATCH};
use super::support::report::{Bar, Figure, median};
use super::support::{Services, config, root};
use super::{ROUNDS, plot};

/// Rows of one measurement.
const ROWS: usize = 40_000;
const WRITERS: usize = 2;
const PLOT: &str = "target/bench/known-clients.svg";

/// New clients and known ones, two writers, beside COPY on one connection and on two.
pub async fn measure(services: &Services) -> Result<Vec<Figure>> {
    let (mut new, mut known, mut copied, mut copied_by_two) = (vec![], vec![], vec![], vec![]);
    for round in 0..ROUNDS {
        let clients = rows::clients(ROWS);
        let arrivals = rows::arrivals(&clients, round);
        let again = rows::arrivals(&clients, round + 1);
        let text = rows::as_text(&arrivals);

        let ours = services.database().await?;
        let store = runtime::open_for_cli(&config(services.postgres_settings(&ours))?).await?;
        new.push(write(services, &store, &arrivals).await?);
        copied.push(copy(services, &text, 1).await?);
        known.push(write(services, &store, &again).await?);
        copied_by_two.push(copy(services, &text, WRITERS).await?);
        store.close().await;
        services.drop_database(&ours).await?;
    }
    let (new, known) = (median(&new), median(&known));
    let (copied, copied_by_two) = (median(&copied), median(&copied_by_two));
    let figure = |name: &str, ours: f64, beside: f64, connections: &str, bar| Figure {
        name: name.to_owned(),
        measured: format!("{ours:.0} rows/s ÷ {beside:.0} by COPY on {connections}"),
        value: ours / beside,
        unit: "",
        bar,
    };
    let (one, two) = ("one connection", "two connections");
    Ok(vec![
        figure("batch, new clients", new, copied, one, Bar::AtLeast(0.9)),
        figure(
            "batch, new clients, beside two",
            new,
            copied_by_two,
            two,
            Bar::None,
        ),
        figure(
            "batch, known clients",
            known,
            copied,
            one,
            Bar::AtLeast(0.7),
        ),
        figure(
            "batch, known clients, beside two",
            known,
            copied_by_two,
            two,
            Bar::None,
        ),
    ])
}

/// Rows a second of all writers together.
async fn write(
    services: &Services,
    store: &Arc<dyn Store>,
    batches: &[Vec<ConnectionUpsert>],
) -> Result<f64> {
    services.settle().await?;
    let mut shares: Vec<Vec<PresenceBatch>> = (0..WRITERS).map(|_| Vec::new()).collect();
    for (n, arrivals) in batches.iter().enumerate() {
        shares[n % WRITERS].push(PresenceBatch {
            arrivals: arrivals.clone(),
            ..PresenceBatch::default()
        });
    }
    let rows: usize = batches.iter().map(Vec::len).sum();
    let started = Instant::now();
    let writers = shares.into_iter().map(|share| {
        let store = store.clone();
        tokio::spawn(async move {
            for batch in share {
                let written = store.record_batch(&batch, &[], Timestamp::now()).await?;
                ensure!(written == WriteOutcome::Committed, "{written:?}");
            }
            Ok(())
        })
    });
    for writer in futures::future::join_all(writers).await {
        writer??;
    }
    Ok(rows as f64 / started.elapsed().as_secs_f64())
}

/// Rows a second of all connections together, into an empty table.
async fn copy(services: &Services, batches: &[Vec<u8>], connections: usize) -> Result<f64> {
    let database = services.database().await?;
    services.settle().await?;
    let mut open = Vec::new();
    for _ in 0..connections {
        open.push(services.connect(&database).await?);
    }
    let started = Instant::now();
    let shares = batches.chunks(batches.len().div_ceil(connections));
    let copies = open.iter_mut().zip(shares).map(|(connection, share)| {
        let rows = share.len() * BATCH;
        rows::copy(connection, share, rows)
    });
    futures::future::try_join_all(copies).await?;
    let rate = (batches.len() * BATCH) as f64 / started.elapsed().as_secs_f64();
    for connection in open {
        connection.close().await?;
    }
    services.drop_database(&database).await?;
    Ok(rate)
}

/// Known clients among ever more of them.
pub async fn measure_known(services: &Services) -> Result<Vec<Figure>> {
    let (mut figures, mut points) = (Vec::new(), Vec::new());
    for (among, name) in [(10_000, "10 k"), (100_000, "100 k"), (1_000_000, "1 M")] {
        let database = services.database().await?;
        let clients = rows::clients(ROWS.min(among));
        let store = runtime::open_for_cli(&config(services.postgres_settings(&database))?).await?;
        write(services, &store, &rows::arrivals(&clients, 0)).await?;
        fill(services, &database, among - clients.len()).await?;
        let mut rates = Vec::new();
        for round in 0..ROUNDS {
            let again = rows::arrivals(&clients, round + 1);
            rates.push(write(services, &store, &again).await?);
        }
        store.close().await;
        services.drop_database(&database).await?;
        let rate = median(&rates);
        points.push((among, rate));
        figures.push(Figure {
            name: format!("batch, known among {name}"),
            measured: "rows/s of two writers".to_owned(),
            value: rate,
            unit: "rows/s",
            bar: Bar::None,
        });
    }
    plot::write(&root().join(PLOT), &points)?;
    Ok(figures)
}

/// Others, made in SQL.
async fn fill(services: &Services, database: &str, count: usize) -> Result<()> {
    let mut connection = services.connect(database).await?;
    sqlx::query(
        "INSERT INTO connections (client_id, org_id, canonical_facts, dispatchers, tags, stale_timestamp)
         SELECT gen_random_uuid(), '10000',
                jsonb_build_object('insights_id', gen_random_uuid(), 'fqdn', n || '.example'),
                '{\"rhc-worker-playbook\": {}}', jsonb_build_object('filler', repeat('x', 200)), now()
           FROM generate_series(1, $1) AS n",
    )
    .bind(i64::try_from(count)?)
    .execute(&mut connection)
    .await?;
    sqlx::query("VACUUM ANALYZE connections")
        .execute(&mut connection)
        .await?;
    Ok(connection.close().await?)
}
