//! Measures the cost of the search index, and of history and events: two writers that record new, changed
//! and unchanged clients, compared with the same writes without the search index, in databases of different
//! sizes, and without history and events. As in the recorder, each batch loads the stored states first.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use domain::Timestamp;
use sqlx::AssertSqlSafe;
use sqlx::Connection as _;
use store::{
    ConnectionUpsert, EventRepository as _, MaintenanceRepository as _, PresenceBatch,
    PresenceRepository as _, WriteOutcome,
};
use store_postgres::PostgresStore;

use super::plot::{self, Series};
use super::rows;
use super::support::report::{Goal, Measurement, median};
use super::support::{Services, load_config, repository_root};
use super::{ORG_ID, RUN_COUNT};

/// Number of known clients in the databases of the comparison.
const COMPARED_SIZE: usize = 1_000_000;
const SIZES: [usize; 3] = [100_000, COMPARED_SIZE, 4_000_000];
/// Number of rows that each run writes.
const ROWS_PER_RUN: usize = 30_000;
const WRITER_COUNT: usize = 2;
/// Interval of the job that moves the entries of the pending list to the index, as in `record`.
const FLUSH_INTERVAL: Duration = Duration::from_millis(1500);
/// Interval and size of the moves of events, as in `record`.
const SEQUENCE_INTERVAL: Duration = Duration::from_millis(100);
const SEQUENCED_EVENTS: u32 = 1000;
const PLOT_FILE: &str = "target/bench/search-index.svg";

/// What the messages of a run change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    NewClient,
    ChangedTag,
    Nothing,
}

const CHANGES: [(Change, &str, f64); 3] = [
    (Change::NewClient, "new", 0.4),
    (Change::ChangedTag, "changed", 0.5),
    (Change::Nothing, "unchanged", 0.9),
];

/// What a side writes beside the connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extra {
    Nothing,
    SearchIndex,
    SearchIndexHistoryAndEvents,
}

/// A database, and what is written to it.
struct Side {
    database: String,
    store: Arc<PostgresStore>,
    extra: Extra,
    /// The clients that are updated.
    known_clients: Vec<String>,
    /// The revision that the known clients have.
    revision: usize,
}

pub async fn measure_search_index(services: &Services) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    let mut points_by_change: [Vec<(usize, f64)>; 3] = Default::default();
    for size in SIZES {
        let mut sides = vec![Side::create(services, size, Extra::SearchIndex).await?];
        if size == COMPARED_SIZE {
            sides.push(Side::create(services, size, Extra::Nothing).await?);
        }
        services.checkpoint().await?;
        let (rates, longest_batch) = measure_sides(&mut sides).await?;
        for (points, rates) in points_by_change.iter_mut().zip(&rates) {
            points.push((size, rates[0]));
        }
        if size == COMPARED_SIZE {
            measurements.extend(comparison(&rates, longest_batch));
        }
        for side in sides {
            side.store.close().await;
            services.drop_database(&side.database).await?;
        }
    }
    let series = CHANGES.iter().zip(points_by_change);
    let series: Vec<Series> = series
        .map(|((_, name, _), points)| Series {
            name: format!("{name} clients"),
            points,
        })
        .collect();
    for Series { name, points } in &series {
        for (size, rate) in points {
            let size = plot::with_thousands_separators(*size as f64);
            measurements.push(Measurement {
                name: format!("{name}, {size} known clients"),
                details: "two writers, with the search index".to_owned(),
                value: *rate,
                unit: "rows/s",
                goal: Goal::None,
            });
        }
    }
    plot::write_svg(&repository_root().join(PLOT_FILE), &series)?;
    Ok(measurements)
}

/// Number of known clients in the databases of the comparison of history and events.
const HISTORY_SIZE: usize = 300_000;

/// Minimum rate with history and events, divided by the rate without.
const HISTORY_GOALS: [f64; 3] = [0.75, 0.0, 0.85];

pub async fn measure_history_and_events(services: &Services) -> Result<Vec<Measurement>> {
    let mut sides = Vec::new();
    for extra in [Extra::SearchIndexHistoryAndEvents, Extra::SearchIndex] {
        sides.push(Side::create(services, HISTORY_SIZE, extra).await?);
    }
    services.checkpoint().await?;
    let (rates, _) = measure_sides(&mut sides).await?;
    for side in sides {
        side.store.close().await;
        services.drop_database(&side.database).await?;
    }
    let compared = CHANGES.iter().zip(rates).zip(HISTORY_GOALS);
    let measurements = compared.map(|(((_, name, _), rates), min_ratio)| Measurement {
        name: format!("{name} clients, with ÷ without history and events"),
        details: format!("{:.0} ÷ {:.0} rows/s", rates[0], rates[1]),
        value: rates[0] / rates[1],
        unit: "",
        goal: if min_ratio > 0.0 {
            Goal::AtLeast(min_ratio)
        } else {
            Goal::None
        },
    });
    Ok(measurements.collect())
}

/// Compares the rates with (first) and without (second) the search index.
fn comparison(rates: &[Vec<f64>; 3], longest_batch: Duration) -> Vec<Measurement> {
    let mut measurements: Vec<Measurement> = CHANGES
        .iter()
        .zip(rates)
        .map(|((_, name, min_ratio), rates)| Measurement {
            name: format!("{name} clients, with ÷ without the search index"),
            details: format!("{:.0} ÷ {:.0} rows/s", rates[0], rates[1]),
            value: rates[0] / rates[1],
            unit: "",
            goal: Goal::AtLeast(*min_ratio),
        })
        .collect();
    measurements.push(Measurement {
        name: "longest batch with the search index".to_owned(),
        details: "1,000 rows".to_owned(),
        value: longest_batch.as_secs_f64(),
        unit: "s",
        goal: Goal::AtMost(0.3),
    });
    measurements
}

/// Runs all changes on all sides in turn. Returns the median rate of each change and side, and the
/// duration of the longest batch with the search index.
async fn measure_sides(sides: &mut [Side]) -> Result<([Vec<f64>; 3], Duration)> {
    let mut samples: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); sides.len()]; CHANGES.len()];
    let mut longest_batch = Duration::ZERO;
    for _ in 0..RUN_COUNT {
        for (samples, (change, ..)) in samples.iter_mut().zip(CHANGES) {
            for (samples, side) in samples.iter_mut().zip(sides.iter_mut()) {
                let (rate, longest) = side.record(change).await?;
                samples.push(rate);
                if side.extra != Extra::Nothing {
                    longest_batch = longest_batch.max(longest);
                }
            }
        }
    }
    let medians = |samples: &Vec<Vec<f64>>| samples.iter().map(|rates| median(rates)).collect();
    let mut rates = samples.iter().map(medians);
    let rates = std::array::from_fn(|_| rates.next().unwrap_or_default());
    Ok((rates, longest_batch))
}

impl Side {
    async fn create(services: &Services, size: usize, extra: Extra) -> Result<Self> {
        let database = services.create_database().await?;
        let config = load_config(services.postgres_env_vars(&database))?;
        let mut side = Self {
            store: Arc::new(PostgresStore::new(&config.postgres)),
            extra,
            known_clients: rows::random_client_ids(ROWS_PER_RUN),
            revision: 0,
            database,
        };
        println!("inserting {size} connections");
        insert_other_clients(
            services,
            &side.database,
            size - ROWS_PER_RUN,
            extra != Extra::Nothing,
        )
        .await?;
        let batches = rows::upsert_batches(&side.known_clients, side.revision);
        side.write(batches).await?;
        // The cost of the first batches differs, because the plans and the caches are empty.
        side.record(Change::ChangedTag).await?;
        Ok(side)
    }

    /// Returns the rows per second, and the duration of the longest batch.
    async fn record(&mut self, change: Change) -> Result<(f64, Duration)> {
        if change == Change::ChangedTag {
            self.revision += 1;
        }
        let batches = if change == Change::NewClient {
            rows::upsert_batches(&rows::random_client_ids(ROWS_PER_RUN), 0)
        } else {
            rows::upsert_batches(&self.known_clients, self.revision)
        };
        self.write(batches).await
    }

    async fn write(&self, batches: Vec<Vec<ConnectionUpsert>>) -> Result<(f64, Duration)> {
        let mut batches_by_writer: [Vec<PresenceBatch>; WRITER_COUNT] = Default::default();
        for (index, upserts) in batches.into_iter().enumerate() {
            batches_by_writer[index % WRITER_COUNT].push(PresenceBatch {
                upserts,
                ..PresenceBatch::default()
            });
        }
        let jobs = self.run_jobs();
        let started_at = Instant::now();
        let writers = batches_by_writer
            .map(|batches| tokio::spawn(write_batches(self.store.clone(), self.extra, batches)));
        let write_all = futures::future::try_join_all(writers);
        let results = tokio::select! {
            results = write_all => results?,
            never = jobs => never,
        };
        let elapsed = started_at.elapsed();
        let mut longest_batch = Duration::ZERO;
        for result in results {
            longest_batch = longest_batch.max(result?);
        }
        Ok((ROWS_PER_RUN as f64 / elapsed.as_secs_f64(), longest_batch))
    }

    /// Flushes the search index and moves events periodically, as `record` does. Never returns.
    async fn run_jobs<T>(&self) -> T {
        // An error would only make the next run larger.
        let flush = async {
            loop {
                tokio::time::sleep(FLUSH_INTERVAL).await;
                if self.extra != Extra::Nothing {
                    let _ = self.store.flush_search_index().await;
                }
            }
        };
        let sequence = async {
            loop {
                tokio::time::sleep(SEQUENCE_INTERVAL).await;
                if self.extra == Extra::SearchIndexHistoryAndEvents {
                    while self.store.sequence_events(SEQUENCED_EVENTS).await.ok()
                        == Some(SEQUENCED_EVENTS.into())
                    {}
                }
            }
        };
        tokio::select! {
            never = flush => never,
            never = sequence => never,
        }
    }
}

/// Returns the duration of the longest batch.
async fn write_batches(
    store: Arc<PostgresStore>,
    extra: Extra,
    batches: Vec<PresenceBatch>,
) -> Result<Duration> {
    let mut longest_batch = Duration::ZERO;
    for mut batch in batches {
        let started_at = Instant::now();
        let now = Timestamp::now();
        let with_history = extra == Extra::SearchIndexHistoryAndEvents;
        rows::apply_stored_states(&store, &mut batch, with_history).await?;
        if extra == Extra::Nothing {
            store_postgres::record_without_search_index(&store, &batch.upserts, now).await?;
        } else {
            let outcome = store.record_batch(&batch, &[], now).await?;
            ensure!(outcome == WriteOutcome::Committed, "{outcome:?}");
        }
        longest_batch = longest_batch.max(started_at.elapsed());
    }
    Ok(longest_batch)
}

/// Inserts clients that the benchmark does not update. They increase the size of the tables and of the
/// indexes. The triggers are disabled, and the indexes are created afterwards, because that is faster.
async fn insert_other_clients(
    services: &Services,
    database: &str,
    count: usize,
    has_search_index: bool,
) -> Result<()> {
    let insert = format!(
        "INSERT INTO connections (client_id, org_id, account, canonical_facts, dispatchers, tags,
                inventory_eligible, stale_timestamp)
         SELECT id, '{ORG_ID}', '111000',
                jsonb_build_object('insights_id', id, 'fqdn', id || '.example'),
                '{{\"rhc-worker-playbook\": {{}}}}',
                jsonb_build_object('revision', '0', 'filler', repeat('x', 150)), true, now()
           FROM (SELECT gen_random_uuid()::text AS id FROM generate_series(1, {count})) AS ids
          ORDER BY id"
    );
    let insert_search_rows = "
        INSERT INTO connection_search (client_id, org_id, content_hash, fqdn, insights_id,
               subscription_manager_id, term_hashes)
        SELECT client_id, org_id, search_entry_hash(org_id, fqdn, insights_id,
                   subscription_manager_id, term_hashes), fqdn, insights_id, subscription_manager_id,
               term_hashes
          FROM (SELECT client_id, org_id, search_fqdn(canonical_facts) AS fqdn,
                       search_identifier(canonical_facts, 'insights_id') AS insights_id,
                       search_identifier(canonical_facts, 'subscription_manager_id')
                           AS subscription_manager_id,
                       ARRAY(SELECT hashtextextended(org_id || chr(31) || term, 0)
                               FROM search_terms(canonical_facts, dispatchers, tags) AS t (term)
                              WHERE term IS NOT NULL) AS term_hashes
                  FROM connections OFFSET 0) AS entries";
    let definition =
        "SELECT indexdef FROM pg_indexes WHERE indexname = 'connection_search_term_hashes'";
    let mut connection = services.connect(database).await?;
    let create_index: String = sqlx::query_scalar(definition)
        .fetch_one(&mut connection)
        .await?;
    let mut statements = vec![
        "SET maintenance_work_mem = '1GB'",
        "ALTER TABLE connections DISABLE TRIGGER USER",
        "DROP INDEX connection_search_term_hashes",
        &insert,
        "INSERT INTO inventory_reports SELECT client_id, stale_timestamp FROM connections",
        "INSERT INTO org_connection_deltas (org_id, delta, shard)
         SELECT org_id, count(*), 1000 FROM connections GROUP BY org_id",
        "ALTER TABLE connections ENABLE TRIGGER USER",
    ];
    if has_search_index {
        statements.extend([insert_search_rows, create_index.as_str()]);
    }
    statements.push("VACUUM ANALYZE");
    for statement in statements {
        sqlx::query(AssertSqlSafe(statement.to_owned()))
            .execute(&mut connection)
            .await?;
    }
    Ok(connection.close().await?)
}
