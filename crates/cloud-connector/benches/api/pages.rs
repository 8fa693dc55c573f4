//! Measures how fast the API lists the connections of an organization with four million connections.
//! The baseline is the same queries in SQL.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgConnection, Row as _};

use super::load::Caller;
use super::support::Services;
use super::support::report::{Goal, Measurement, median};
use super::{API_KEY_SECRET, ORG_ID, RUN_COUNT, rows, throughput};

const CLIENT_COUNT: usize = 4_000_000;
/// Number of the client in the middle of the list.
const MIDDLE_CLIENT_NUMBER: usize = CLIENT_COUNT / 2;
/// Number of requests that each run sends for each kind of page.
const PAGE_REQUESTS_PER_RUN: usize = 7;
/// Maximum time until PostgreSQL's statistics include the scans of a query.
const STATISTICS_DELAY: Duration = Duration::from_secs(2);

/// Columns that the connector reads for each connection in a list.
const LIST_COLUMNS: &str = "client_id, org_id, COALESCE(account, '') AS account, \
     dialect, kind, topic_prefix, canonical_facts, catalog_service_facts, dispatchers, \
     COALESCE(tags, 'null') AS tags, client_name, client_version, message_id, message_sent";

/// An HTTP connection to the API, and a direct connection to the database of the API.
struct ApiAndDatabase {
    api: Caller,
    database: PgConnection,
}

impl ApiAndDatabase {
    /// Requests a list with this query string. Returns the latency of the request in milliseconds.
    async fn measure_request_ms(&mut self, query_string: &str) -> Result<f64> {
        let request = format!(
            "GET /api/cloud-connector/v2/connections?{query_string} HTTP/1.1\r\nhost: localhost\r\n\
             x-rh-cloud-connector-client-id: bench\r\nx-rh-cloud-connector-psk: {API_KEY_SECRET}\r\n\
             x-rh-cloud-connector-org-id: {ORG_ID}\r\n\r\n"
        );
        let started_at = Instant::now();
        let body = self.api.send_request(request.as_bytes(), "200").await?;
        let latency_ms = started_at.elapsed().as_secs_f64() * 1e3;
        ensure!(
            body.len() > 100,
            "the page is empty: {}",
            String::from_utf8_lossy(body)
        );
        Ok(latency_ms)
    }

    /// Runs a query directly in the database. Returns the duration of the query in milliseconds.
    async fn measure_sql_ms(&mut self, sql: &str) -> Result<f64> {
        let started_at = Instant::now();
        let rows = sqlx::query(AssertSqlSafe(sql.to_owned()))
            .persistent(false)
            .fetch_all(&mut self.database)
            .await?;
        let duration_ms = started_at.elapsed().as_secs_f64() * 1e3;
        ensure!(!rows.is_empty(), "the query returned no rows: {sql}");
        Ok(duration_ms)
    }

    /// Returns the number of sequential scans of `connections` and `connection_search` since the
    /// creation of these tables.
    async fn count_sequential_scans(&mut self) -> Result<i64> {
        tokio::time::sleep(STATISTICS_DELAY).await;
        let row = sqlx::query(
            "SELECT COALESCE(sum(seq_scan), 0)::bigint AS scans FROM pg_stat_user_tables
              WHERE relname IN ('connections', 'connection_search')",
        )
        .fetch_one(&mut self.database)
        .await?;
        Ok(row.try_get("scans")?)
    }
}

/// Measures list requests with and without filters.
pub async fn measure_lists(services: &Services) -> Result<Vec<Measurement>> {
    let database = services.create_database().await?;
    println!("inserting {CLIENT_COUNT} connections");
    rows::insert_connections(services, &database, CLIENT_COUNT).await?;
    services.checkpoint().await?;
    let connector = throughput::start_api(services, &database).await?;
    let mut connections = ApiAndDatabase {
        api: Caller::connect(&connector.http_url).await?,
        database: services.connect(&database).await?,
    };
    // The same settings as in the connections of the API.
    for setting in ["SET jit = off", "SET max_parallel_workers_per_gather = 0"] {
        sqlx::query(setting)
            .execute(&mut connections.database)
            .await?;
    }
    let mut measurements = measure_pages(&mut connections).await?;
    measurements.extend(measure_filters(&mut connections).await?);
    drop(connections);
    connector.stop().await?;
    services.drop_database(&database).await?;
    Ok(measurements)
}

async fn measure_pages(connections: &mut ApiAndDatabase) -> Result<Vec<Measurement>> {
    let count_sql = format!(
        "SELECT COALESCE(sum(delta), 0)::bigint FROM org_connection_deltas WHERE org_id = '{ORG_ID}'"
    );
    let page_sql = format!(
        "SELECT {LIST_COLUMNS} FROM connections WHERE org_id = '{ORG_ID}' ORDER BY client_id LIMIT 100"
    );
    let first_page = "limit=100";
    let first_page_without_count = "limit=100&cursor=";
    let middle_by_cursor = format!("limit=100&cursor={}", rows::client_id(MIDDLE_CLIENT_NUMBER));
    let middle_by_offset = format!("limit=100&offset={MIDDLE_CLIENT_NUMBER}");
    // One vector of durations for each element of `durations_ms`, in the same order.
    let mut samples_ms: [Vec<f64>; 6] = Default::default();
    // Run 0 is a warm-up that fills the caches.
    for run in 0..=RUN_COUNT {
        for _ in 0..PAGE_REQUESTS_PER_RUN {
            let durations_ms = [
                connections.measure_request_ms(first_page).await?,
                connections.measure_sql_ms(&count_sql).await?,
                connections
                    .measure_request_ms(first_page_without_count)
                    .await?,
                connections.measure_sql_ms(&page_sql).await?,
                connections.measure_request_ms(&middle_by_cursor).await?,
                connections.measure_request_ms(&middle_by_offset).await?,
            ];
            if run > 0 {
                for (samples, duration_ms) in samples_ms.iter_mut().zip(durations_ms) {
                    samples.push(duration_ms);
                }
            }
        }
    }
    let [
        first_page_ms,
        count_sql_ms,
        first_without_count_ms,
        page_sql_ms,
        by_cursor_ms,
        by_offset_ms,
    ] = samples_ms.map(|samples| median(&samples));
    Ok(vec![
        Measurement {
            name: "first page of 100 with count, time".to_owned(),
            details: "4,000,000 connections".to_owned(),
            value: first_page_ms,
            unit: "ms",
            goal: Goal::AtMost(5.0),
        },
        Measurement {
            name: "first page of 100 with count".to_owned(),
            details: format!(
                "{first_page_ms:.1} ms ÷ ({count_sql_ms:.1} ms to count + {page_sql_ms:.1} ms for the page \
                 in SQL)"
            ),
            value: first_page_ms / (count_sql_ms + page_sql_ms),
            unit: "",
            goal: Goal::AtMost(1.2),
        },
        Measurement {
            name: "page in the middle by cursor".to_owned(),
            details: format!(
                "{by_cursor_ms:.1} ms ÷ {first_without_count_ms:.1} ms of the first page without count"
            ),
            value: by_cursor_ms / first_without_count_ms,
            unit: "",
            goal: Goal::AtMost(1.5),
        },
        Measurement {
            name: "page in the middle by offset".to_owned(),
            details: "reads half of an index".to_owned(),
            value: by_offset_ms,
            unit: "ms",
            goal: Goal::None,
        },
    ])
}

/// A filter of the list endpoint.
struct Filter {
    /// Name of the measurement.
    measurement_name: &'static str,
    /// Query string of the API request with this filter.
    query_string: &'static str,
    /// Term of the search index. It matches the same connections as `query_string`.
    search_term: &'static str,
    /// Performance goal: maximum latency of the first page.
    max_ms: Option<f64>,
}

const FILTERS: [Filter; 4] = [
    Filter {
        measurement_name: "filter by a dispatcher of one tenth of the clients",
        query_string: "dispatcher=rhc_worker_playbook",
        search_term: "dispatcher:rhc-worker-playbook",
        max_ms: None,
    },
    Filter {
        measurement_name: "filter by a dispatcher of one thousandth",
        query_string: "dispatcher=rare-worker",
        search_term: "dispatcher:rare-worker",
        max_ms: None,
    },
    Filter {
        measurement_name: "filter by a tag of one two-hundredth",
        query_string: "tag=site:dc7",
        search_term: "tag:site\u{1f}dc7",
        max_ms: None,
    },
    Filter {
        measurement_name: "filter by a fact of one client",
        query_string: "fqdn=Host777.example.com",
        search_term: "fact:fqdn\u{1f}host777.example.com",
        max_ms: Some(2.0),
    },
];

/// Measures list requests with filters. Each request and each SQL query returns the number of
/// matching connections and the first page.
async fn measure_filters(connections: &mut ApiAndDatabase) -> Result<Vec<Measurement>> {
    let mut measurements = Vec::new();
    let mut sequential_scans = 0;
    for filter in FILTERS {
        let search_term = filter.search_term;
        let matching_rows = format!(
            "FROM connections WHERE org_id = '{ORG_ID}' AND client_id IN (
               SELECT s.client_id FROM connection_search AS s WHERE s.term_hashes @>
                 ARRAY[hashtextextended('{ORG_ID}' || chr(31) || '{search_term}', 0)])"
        );
        // The count has the same limit as in the API.
        let sql = format!(
            "SELECT total.count, page.* FROM (
               SELECT count(*) AS count FROM (SELECT {matching_rows} LIMIT 10001) AS m) AS total
               LEFT JOIN (SELECT {LIST_COLUMNS} {matching_rows} ORDER BY client_id LIMIT 100) AS page
                 ON true
              ORDER BY page.client_id"
        );
        let (mut api_samples_ms, mut sql_samples_ms) = (Vec::new(), Vec::new());
        let scans_before = connections.count_sequential_scans().await?;
        let query_string = format!("limit=100&{}", filter.query_string);
        // Run 0 is a warm-up that fills the caches.
        for run in 0..=RUN_COUNT {
            let api_ms = connections.measure_request_ms(&query_string).await?;
            let sql_ms = connections.measure_sql_ms(&sql).await?;
            if run > 0 {
                api_samples_ms.push(api_ms);
                sql_samples_ms.push(sql_ms);
            }
        }
        sequential_scans += connections.count_sequential_scans().await? - scans_before;
        let (api_ms, sql_ms) = (median(&api_samples_ms), median(&sql_samples_ms));
        measurements.push(Measurement {
            name: format!("{}, time", filter.measurement_name),
            details: "first page with count".to_owned(),
            value: api_ms,
            unit: "ms",
            goal: filter.max_ms.map_or(Goal::None, Goal::AtMost),
        });
        measurements.push(Measurement {
            name: filter.measurement_name.to_owned(),
            details: format!("{api_ms:.1} ms ÷ {sql_ms:.1} ms in SQL"),
            value: api_ms / sql_ms,
            unit: "",
            goal: Goal::AtMost(1.2),
        });
    }
    measurements.push(Measurement {
        name: "sequential scans caused by the filters".to_owned(),
        details: "PostgreSQL's statistics".to_owned(),
        value: sequential_scans as f64,
        unit: "scans",
        goal: Goal::AtMost(0.0),
    });
    Ok(measurements)
}
