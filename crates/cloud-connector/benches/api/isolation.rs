//! Measures whether the duration of a request reveals that a client exists which the organization may not see.
//!
//! Requests for clients of another organization, for tenantless clients and for clients that never existed
//! alternate, one at a time. The medians of the durations must be equal within 10 %. The test
//! `rest::isolation` checks that the responses are equal.

use std::time::Instant;

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, Connection as _};

use super::load::Caller;
use super::support::Services;
use super::support::report::{Goal, Measurement, median};
use super::{API_KEY_SECRET, ORG_ID, rows, throughput};

/// Number of connections in the database.
const CLIENT_COUNT: usize = 100_000;
/// Number of requests for each endpoint and kind of client.
const REQUESTS_PER_KIND: usize = 1000;
/// Number of requests before the measurement, which fill the caches.
const WARM_UP_REQUESTS: usize = 1000;
/// Maximum ratio of the slowest to the fastest median.
const MAX_RATIO: f64 = 1.1;

/// Clients that the organization may not see. Their names in the same order are [`KIND_NAMES`].
const KINDS: [Kind; 4] = [
    Kind::Unknown,
    Kind::OtherOrg,
    Kind::DisconnectedOtherOrg,
    Kind::Tenantless,
];
const KIND_NAMES: [&str; 4] = [
    "unknown",
    "other org",
    "other org, disconnected",
    "tenantless",
];

#[derive(Clone, Copy)]
enum Kind {
    Unknown,
    OtherOrg,
    DisconnectedOtherOrg,
    Tenantless,
}

impl Kind {
    /// Returns the id of a client. The ids of all kinds have the same length.
    fn client_id(self, number: usize) -> String {
        let number = number % REQUESTS_PER_KIND;
        match self {
            Self::Unknown => format!("unseen-{number:07}"),
            Self::OtherOrg => rows::client_id(1000 + number),
            Self::DisconnectedOtherOrg => rows::client_id(2000 + number),
            Self::Tenantless => rows::client_id(3000 + number),
        }
    }
}

/// A request about one client.
#[derive(Clone, Copy)]
enum Endpoint {
    Details,
    History,
    Status,
    BatchStatus,
    Message,
    List,
}

impl Endpoint {
    const ALL: [Self; 6] = [
        Self::Details,
        Self::History,
        Self::Status,
        Self::BatchStatus,
        Self::Message,
        Self::List,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Details => "details",
            Self::History => "history",
            Self::Status => "status",
            Self::BatchStatus => "batch status",
            Self::Message => "message",
            Self::List => "list",
        }
    }

    fn expected_status(self) -> &'static str {
        match self {
            Self::Details | Self::History | Self::Message => "404",
            Self::Status | Self::BatchStatus | Self::List => "200",
        }
    }

    fn request(self, client_id: &str) -> Vec<u8> {
        let (method, path, body) = match self {
            Self::Details => ("GET", format!("/{client_id}"), String::new()),
            Self::History => ("GET", format!("/{client_id}/history"), String::new()),
            Self::Status => ("GET", format!("/{client_id}/status"), String::new()),
            Self::BatchStatus => {
                let body = format!(r#"{{"client_ids":["{client_id}"]}}"#);
                ("POST", "/status".to_owned(), body)
            }
            Self::Message => {
                let body = r#"{"directive":"d"}"#.to_owned();
                ("POST", format!("/{client_id}/message"), body)
            }
            Self::List => ("GET", format!("?search={client_id}&cursor="), String::new()),
        };
        let body_headers = if body.is_empty() {
            String::new()
        } else {
            let length = body.len();
            format!("content-type: application/json\r\ncontent-length: {length}\r\n")
        };
        format!(
            "{method} /api/cloud-connector/v2/connections{path} HTTP/1.1\r\nhost: localhost\r\n\
             x-rh-cloud-connector-client-id: bench\r\nx-rh-cloud-connector-psk: {API_KEY_SECRET}\r\n\
             x-rh-cloud-connector-org-id: {ORG_ID}\r\n{body_headers}\r\n{body}"
        )
        .into_bytes()
    }
}

/// Measures the durations of requests for clients that the organization may not see.
pub async fn measure_hidden_clients(services: &Services) -> Result<Vec<Measurement>> {
    let database = services.create_database().await?;
    rows::insert_connections(services, &database, CLIENT_COUNT).await?;
    hide_clients(services, &database).await?;
    services.checkpoint().await?;
    let connector = throughput::start_api(services, &database).await?;
    let mut caller = Caller::connect(&connector.http_url).await?;
    let mut measurements = Vec::new();
    for endpoint in Endpoint::ALL {
        measurements.push(measure_endpoint(&mut caller, endpoint).await?);
    }
    connector.stop().await?;
    services.drop_database(&database).await?;
    Ok(measurements)
}

async fn measure_endpoint(caller: &mut Caller, endpoint: Endpoint) -> Result<Measurement> {
    let mut durations_ms: [Vec<f64>; KINDS.len()] = Default::default();
    let total = WARM_UP_REQUESTS + REQUESTS_PER_KIND;
    for number in 0..total {
        // Each kind is first equally often, because a request can affect the next one.
        for turn in 0..KINDS.len() {
            let index = (turn + number) % KINDS.len();
            let request = endpoint.request(&KINDS[index].client_id(number * 7));
            let started_at = Instant::now();
            let body = caller
                .send_request(&request, endpoint.expected_status())
                .await?;
            let duration_ms = started_at.elapsed().as_secs_f64() * 1e3;
            ensure!(!body.is_empty(), "the response has no body");
            if number >= WARM_UP_REQUESTS {
                durations_ms[index].push(duration_ms);
            }
        }
    }
    let medians = durations_ms.each_ref().map(|it| median(it));
    let fastest = medians.iter().copied().fold(f64::INFINITY, f64::min);
    let slowest = medians.iter().copied().fold(0.0, f64::max);
    let details: Vec<String> = KIND_NAMES
        .iter()
        .zip(medians)
        .map(|(name, median_ms)| format!("{name} {median_ms:.3} ms"))
        .collect();
    Ok(Measurement {
        name: format!("hidden clients, {}", endpoint.name()),
        details: details.join(", "),
        value: slowest / fastest,
        unit: "",
        goal: Goal::AtMost(MAX_RATIO),
    })
}

/// Gives three thousand clients, which have large facts and a long history, to another organization or to no
/// organization.
async fn hide_clients(services: &Services, database: &str) -> Result<()> {
    const COLUMNS: &str = "client_id, org_id, account, tags, dialect, kind, topic_prefix, \
         canonical_facts, dispatchers, client_name, client_version, message_id, message_sent";
    let range = |first: usize| {
        let (first, last) = (rows::client_id(first), rows::client_id(first + 999));
        format!("client_id BETWEEN '{first}' AND '{last}'")
    };
    let (connected, disconnected, tenantless) = (range(1000), range(2000), range(3000));
    let hidden = format!("({connected} OR {disconnected} OR {tenantless})");
    let mut connection = services.connect(database).await?;
    for statement in [
        format!(
            "UPDATE connections SET org_id = '20000', canonical_facts = canonical_facts ||
                    jsonb_build_object('notes', (SELECT string_agg(md5(n || client_id), '')
                        FROM generate_series(1, 200) AS n))
              WHERE {hidden}"
        ),
        format!("UPDATE connections SET org_id = '' WHERE {tenantless}"),
        format!(
            "INSERT INTO presence_history (client_id, number, at, org_id, status, reason)
             SELECT client_id, n, now(), org_id, 'online', 'connected'
               FROM connections, generate_series(1, 100) AS n WHERE {hidden}"
        ),
        format!(
            "INSERT INTO disconnected_clients ({COLUMNS}, tenant_lookup_failure_count,
                    disconnected_at, reason)
             SELECT {COLUMNS}, 0, now(), 'will' FROM connections WHERE {disconnected}"
        ),
        format!("DELETE FROM connections WHERE {disconnected}"),
        "VACUUM ANALYZE connections".to_owned(),
        "VACUUM ANALYZE connection_search".to_owned(),
        "VACUUM ANALYZE disconnected_clients".to_owned(),
        "VACUUM ANALYZE presence_history".to_owned(),
    ] {
        sqlx::query(AssertSqlSafe(statement))
            .execute(&mut connection)
            .await?;
    }
    Ok(connection.close().await?)
}
